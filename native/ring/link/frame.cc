#include "ring/link/frame.h"

#include <cstring>

#include "kernels/crc32c.h"

namespace hvd::ring {
namespace {

bool is_same(const FrameHeader& a, const FrameHeader& b) noexcept { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

FrameHeader seal(Kind kind, uint64_t session, uint64_t sequence, uint32_t bytes, uint32_t payload_crc) noexcept {
  FrameHeader header = {{'h', 'v', '2'}, kind, bytes, session, sequence, payload_crc, 0};
  header.header_crc = crc32c(0, &header, offsetof(FrameHeader, header_crc));
  return header;
}

bool is_data(const FrameHeader& header, uint64_t session, uint64_t sequence, uint32_t bytes) noexcept {
  const bool is_kind = header.kind == Kind::kData || header.kind == Kind::kHeld;
  return is_kind && is_same(header, seal(header.kind, session, sequence, bytes, header.payload_crc));
}

bool is_ack(const FrameHeader& header, uint64_t session) noexcept {
  return is_same(header, seal(Kind::kAck, session, header.sequence, 0, 0));
}

}  // namespace hvd::ring
