// The header of a frame: what it says, how it is sealed, and what makes a received frame good.
//
// A frame is two message parts, this header and the payload. Ranks know from the collective which frame comes next, so
// nothing is learnt from a header: a frame is good if its header is, byte for byte, the one that was expected, and the
// payload has the checksum that it names. 32 bytes travel inside a zmq message without an allocation. Fields are in
// little-endian order, as is every processor that wheels are built for.

#ifndef HVDLITE_RING_FRAME_H_
#define HVDLITE_RING_FRAME_H_

#include <cstddef>
#include <cstdint>

namespace hvd::ring {

struct FrameHeader {
  char magic[4];  // names the protocol and its version
  uint32_t bytes;
  uint64_t session;
  uint64_t sequence;     // counts the frames of a link
  uint32_t payload_crc;  // 0 on a link that stays on the host
  uint32_t header_crc;   // of all fields above
};
static_assert(sizeof(FrameHeader) == 32 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

FrameHeader seal(uint64_t session, uint64_t sequence, uint32_t bytes, uint32_t payload_crc) noexcept;

// True if these bytes at `header` are exactly the header of the frame that is expected.
bool is_header(const void* header, size_t header_bytes, const FrameHeader& expected) noexcept;

}  // namespace hvd::ring

#endif  // HVDLITE_RING_FRAME_H_
