#include "ring/frame.h"

#include <cstring>

#include "kernels/crc32c.h"

namespace hvd::ring {

FrameHeader seal(uint64_t session, uint64_t sequence, uint32_t bytes, uint32_t payload_crc) noexcept {
  FrameHeader header = {{'h', 'v', 'R', '1'}, bytes, session, sequence, payload_crc, 0};
  header.header_crc = crc32c(0, &header, offsetof(FrameHeader, header_crc));
  return header;
}

bool is_header(const void* header, size_t header_bytes, const FrameHeader& expected) noexcept {
  return header_bytes == sizeof expected && std::memcmp(header, &expected, sizeof expected) == 0;
}

}  // namespace hvd::ring
