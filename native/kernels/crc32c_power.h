// Powers of x modulo the polynomial of CRC32C: the constants by which checksums are moved past bytes that follow.

#pragma once

#include <cstdint>

namespace hvd {

constexpr uint32_t kCrc32cPolynomial = 0x82f63b78u;  // reflected: bit 31 is x^0

constexpr uint32_t times_x(uint32_t value) { return value >> 1 ^ (value & 1 ? kCrc32cPolynomial : 0); }

// x^n, reflected.
constexpr uint32_t power_of_x(uint64_t n) {
  uint32_t value = 1u << 31;
  for (uint64_t i = 0; i < n; ++i) value = times_x(value);
  return value;
}

}  // namespace hvd
