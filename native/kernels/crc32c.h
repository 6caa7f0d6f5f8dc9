// CRC32C (Castagnoli), the checksum of frames that cross a network.

#ifndef HVDLITE_KERNELS_CRC32C_H_
#define HVDLITE_KERNELS_CRC32C_H_

#include <cstdint>

namespace hvd {

// The checksum of `crc`'s data followed by these bytes; start with 0.
uint32_t crc32c(uint32_t crc, const void* data, uint64_t bytes) noexcept;

// The same on any processor; for tests.
uint32_t crc32c_by_table(uint32_t crc, const void* data, uint64_t bytes) noexcept;

}  // namespace hvd

#endif  // HVDLITE_KERNELS_CRC32C_H_
