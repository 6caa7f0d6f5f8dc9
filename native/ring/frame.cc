#include "ring/frame.h"

#include <cstring>

#include "kernels/crc32c.h"

namespace hvd::ring {

FrameHeader seal(uint64_t session, uint64_t sequence, uint32_t bytes, uint32_t payload_crc) noexcept {
  FrameHeader header = {{'h', 'v', 'R', '1'}, bytes, session, sequence, payload_crc, 0};
  header.header_crc = crc32c(0, &header, offsetof(FrameHeader, header_crc));
  return header;
}

bool is_frame(const void* header, size_t header_bytes, const void* payload, size_t payload_bytes, uint64_t session,
              uint64_t sequence, uint64_t expected_bytes, uint32_t* payload_crc) noexcept {
  if (header_bytes != sizeof(FrameHeader) || payload_bytes != expected_bytes) return false;
  *payload_crc = crc32c(0, payload, payload_bytes);
  const FrameHeader expected = seal(session, sequence, static_cast<uint32_t>(expected_bytes), *payload_crc);
  return std::memcmp(header, &expected, sizeof expected) == 0;
}

}  // namespace hvd::ring
