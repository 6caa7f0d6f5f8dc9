// The header of a frame: its fields, how it is sealed, and which received headers are good.
//
// A frame is this header and then the payload. Ranks know from the collective which frame comes next, so a header
// carries no news: a frame is good if its header is, byte for byte, one that was expected, and the payload has the
// checksum in it. An acknowledgement is a header alone, which goes the other way. Fields are in little-endian order, as
// is every processor that wheels are built for.

#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::ring {

enum class Kind : char {
  kData = 'd',
  kHeld = 'h',  // data in memory of the sender's caller: to be acknowledged by the end of the collective
  kAck = 'a',
};

struct FrameHeader {
  char magic[3];  // names the protocol and its version
  Kind kind;
  uint32_t bytes;
  uint64_t session;
  uint64_t sequence;     // of data: how many frames came before it; of an acknowledgement: how many have been received
  uint32_t payload_crc;  // 0 on a link that does not need it
  uint32_t header_crc;   // of all fields above
};
static_assert(sizeof(FrameHeader) == 32 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

FrameHeader seal(Kind kind, uint64_t session, uint64_t sequence, uint32_t bytes, uint32_t payload_crc) noexcept;

// True if `header` is data with this number and this many bytes, whatever the checksum of its payload.
bool is_data(const FrameHeader& header, uint64_t session, uint64_t sequence, uint32_t bytes) noexcept;

// True if `header` is an acknowledgement, of any number of frames.
bool is_ack(const FrameHeader& header, uint64_t session) noexcept;

}  // namespace hvd::ring
