// How checksums are moved past bytes that follow: multiplied by powers of x modulo the polynomial of CRC32C.

#pragma once

#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <nmmintrin.h>
#include <wmmintrin.h>
#endif

namespace hvd {

constexpr uint32_t kCrc32cPolynomial = 0x82f63b78u;  // reflected: bit 31 is x^0

constexpr uint32_t times_x(uint32_t value) { return value >> 1 ^ (value & 1 ? kCrc32cPolynomial : 0); }

// x^n, reflected.
constexpr uint32_t power_of_x(uint64_t n) {
  uint32_t value = 1u << 31;
  for (uint64_t i = 0; i < n; ++i) value = times_x(value);
  return value;
}

#ifdef __x86_64__

// The product of two reflected 32-bit polynomials is off by one bit, and the CRC instruction multiplies by x^32.
constexpr uint64_t kExcess = 33;

// `crc` times `power`, which is a power of x less kExcess.
__attribute__((target("sse4.2,pclmul"))) inline uint64_t times(uint64_t crc, uint32_t power) noexcept {
  const __m128i factor = _mm_cvtsi32_si128(static_cast<int>(power));
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc)), factor, 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

inline uint64_t word_at(const uint8_t* data) noexcept {
  uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

#endif  // __x86_64__

}  // namespace hvd
