// The kernels for x86-64 with AVX2 and F16C. Wider vectors gain nothing: the folds wait for memory, not for arithmetic.

#ifdef __x86_64__

// Library headers come first, so that nothing inline of theirs is compiled for a processor that may not be there.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#pragma GCC target("avx2,f16c")

#include "kernels/element.h"

namespace hvd {
namespace {

// Conversions of 16-bit floats, twice as fast as what compilers make of element.h. These overloads come before fold.h,
// whose loops prefer them to its templates.

void widen_block(float* out, const Float16* in, uint64_t n) noexcept {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  }
  for (; i < n; ++i) out[i] = widen(in[i]);
}

void narrow_block(Float16* out, const float* in, uint64_t n) noexcept {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
  }
  for (; i < n; ++i) narrow(in[i], out + i);
}

void widen_block(float* out, const BFloat16* in, uint64_t n) noexcept {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_slli_epi32(words, 16));
  }
  for (; i < n; ++i) out[i] = widen(in[i]);
}

// Eight rounded bfloat16 in the low halves of 32-bit words, by the rule of element.h.
__m256i round_to_bfloat16(const float* in) noexcept {
  const __m256 value = _mm256_loadu_ps(in);
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

void narrow_block(BFloat16* out, const float* in, uint64_t n) noexcept {
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i packed = _mm256_packus_epi32(round_to_bfloat16(in + i), round_to_bfloat16(in + i + 8));
    // Packing works within 128-bit lanes; the permutation restores the order.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  for (; i < n; ++i) narrow(in[i], out + i);
}

}  // namespace
}  // namespace hvd

#include "kernels/fold.h"

namespace hvd {

const KernelTable& avx2_kernels() noexcept { return kTable; }

}  // namespace hvd

#endif  // __x86_64__
