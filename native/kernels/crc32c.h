// CRC32C (Castagnoli), the checksum of frames that cross a network.

#pragma once

#include <cstdint>

namespace hvd {

// The checksum of `crc`'s data followed by these bytes; start with 0.
uint32_t crc32c(uint32_t crc, const void* data, uint64_t bytes) noexcept;

// The same on any processor; for tests.
uint32_t crc32c_by_table(uint32_t crc, const void* data, uint64_t bytes) noexcept;

#ifdef __x86_64__
// The same on a processor with SSE4.2 and PCLMULQDQ.
uint32_t crc32c_by_instruction(uint32_t crc, const void* data, uint64_t bytes) noexcept;

// Takes as many whole blocks of the bytes into `crc` as there are; how many bytes that was. Only for a processor with
// AVX2, SSE4.2 and VPCLMULQDQ.
uint64_t crc32c_wide(uint32_t* crc, const void* data, uint64_t bytes) noexcept;
#endif

}  // namespace hvd
