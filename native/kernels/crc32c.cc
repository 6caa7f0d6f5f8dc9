// CRC32C in three ways.
//
// Table: eight bytes a step through eight tables of 256 entries (Kounavis and Berry, "slicing-by-8"), on any processor.
// Hardware: the SSE4.2 instruction takes eight bytes a cycle but three cycles to answer, so three neighbouring blocks
// run interleaved and are joined: appending B bytes to a checksum multiplies it by x^(8B) modulo the polynomial, which
// is one carry-less multiplication by a constant and one more CRC instruction (Gopal et al., "Fast CRC computation for
// iSCSI polynomial using CRC32 instruction"). Both at once, with wide multiplications: crc32c_wide.cc. Each way is
// faster than the one before.

#include "kernels/crc32c.h"

#include <array>
#include <cstring>

#include "hvdlite.h"
#include "kernels/crc32c_power.h"

namespace hvd {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = times_x(crc);
    tables[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (int k = 1; k < 8; ++k) tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
  }
  return tables;
}

constexpr Tables kTables = make_tables();

#ifdef __x86_64__

constexpr uint64_t kBlock = 4096;

constexpr uint32_t kAppendBlock = power_of_x(8 * kBlock - kExcess);
constexpr uint32_t kAppendTwoBlocks = power_of_x(16 * kBlock - kExcess);

uint32_t by_both(uint32_t crc, const void* start, uint64_t bytes) noexcept {
  const uint64_t done = crc32c_wide(&crc, start, bytes);
  return crc32c_by_instruction(crc, static_cast<const uint8_t*>(start) + done, bytes - done);
}

#endif  // __x86_64__

using Crc = uint32_t(uint32_t crc, const void* data, uint64_t bytes) noexcept;

Crc* choose_crc() noexcept {
#ifdef __x86_64__
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
    const bool is_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
    return is_wide ? by_both : crc32c_by_instruction;
  }
#endif
  return crc32c_by_table;
}

}  // namespace

uint32_t crc32c_by_table(uint32_t crc, const void* start, uint64_t bytes) noexcept {
  const uint8_t* data = static_cast<const uint8_t*>(start);
  crc = ~crc;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> 8 * k & 0xff];
  }
  for (; bytes > 0; ++data, --bytes) crc = crc >> 8 ^ kTables[0][(crc ^ *data) & 0xff];
  return ~crc;
}

#ifdef __x86_64__

__attribute__((target("sse4.2,pclmul"))) uint32_t crc32c_by_instruction(uint32_t crc, const void* start,
                                                                        uint64_t bytes) noexcept {
  const uint8_t* data = static_cast<const uint8_t*>(start);
  uint64_t a = static_cast<uint32_t>(~crc);
  for (; bytes >= 3 * kBlock; data += 3 * kBlock, bytes -= 3 * kBlock) {
    uint64_t b = 0, c = 0;
    for (uint64_t i = 0; i < kBlock; i += 8) {
      a = _mm_crc32_u64(a, word_at(data + i));
      b = _mm_crc32_u64(b, word_at(data + kBlock + i));
      c = _mm_crc32_u64(c, word_at(data + 2 * kBlock + i));
    }
    a = times(a, kAppendTwoBlocks) ^ times(b, kAppendBlock) ^ c;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) a = _mm_crc32_u64(a, word_at(data));
  for (; bytes > 0; ++data, --bytes) a = _mm_crc32_u8(static_cast<uint32_t>(a), *data);
  return ~static_cast<uint32_t>(a);
}

#endif  // __x86_64__

uint32_t crc32c(uint32_t crc, const void* data, uint64_t bytes) noexcept {
  static Crc* const chosen = choose_crc();
  return chosen(crc, data, bytes);
}

}  // namespace hvd

uint32_t hvd_crc32c(uint32_t crc, const void* data, uint64_t bytes) { return hvd::crc32c(crc, data, bytes); }
