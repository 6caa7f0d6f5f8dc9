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

// 16-bit floats, twice as fast as what compilers make of element.h. The overloads of what fold.h calls come before it,
// and its loops prefer them to its templates.

constexpr uint64_t kVector = 8;  // accumulators in a register

// Two registers of accumulators, in the order that is cheapest for a type: sums are element by element in any order.
struct Pair {
  __m256 a;
  __m256 b;
};

__m256i load_words(const void* in) noexcept { return _mm256_loadu_si256(static_cast<const __m256i*>(in)); }
void store_words(void* out, __m256i words) noexcept { _mm256_storeu_si256(static_cast<__m256i*>(out), words); }

__m256 load(const Float16* in) noexcept {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
}

__m256 load(const BFloat16* in) noexcept {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

Pair load_pair(const Float16* in) noexcept { return {load(in), load(in + kVector)}; }

// Even elements and odd ones, which takes no shuffle.
Pair load_pair(const BFloat16* in) noexcept {
  const __m256i words = load_words(in), upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)), _mm256_castsi256_ps(_mm256_and_si256(words, upper))};
}

void store_pair(Float16* out, const Pair& pair) noexcept {
  const __m128i a = _mm256_cvtps_ph(pair.a, _MM_FROUND_TO_NEAREST_INT);
  const __m128i b = _mm256_cvtps_ph(pair.b, _MM_FROUND_TO_NEAREST_INT);
  store_words(out, _mm256_set_m128i(b, a));
}

// Eight bfloat16 in the upper halves of 32-bit words, by the rule of element.h.
__m256i round_to_bfloat16(__m256 value) noexcept {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_add_epi32(bits, half), quiet, is_nan);
}

// Rounds the lower halves of all words away at once: up if they are above one half of the last bit that stays, or just
// that and the bit is odd. NaN is so rare that one test and a jump cost less than selecting what becomes of it.
void store_pair(BFloat16* out, const Pair& pair) noexcept {
  if (_mm256_movemask_ps(_mm256_cmp_ps(pair.a, pair.b, _CMP_UNORD_Q)) != 0) {
    const __m256i even = _mm256_srli_epi32(round_to_bfloat16(pair.a), 16);
    return store_words(out, _mm256_blend_epi16(even, round_to_bfloat16(pair.b), 0xaa));
  }
  const __m256i a = _mm256_castps_si256(pair.a), b = _mm256_castps_si256(pair.b);
  const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
  const __m256i lower = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
  const __m256i above_half = _mm256_xor_si256(lower, _mm256_set1_epi16(INT16_MIN));  // signed: zero is one half
  const __m256i minus_odd = _mm256_srai_epi16(_mm256_slli_epi16(upper, 15), 15);
  store_words(out, _mm256_sub_epi16(upper, _mm256_cmpgt_epi16(above_half, minus_odd)));
}

void store(Float16* out, __m256 low, __m256 high) noexcept { store_pair(out, {low, high}); }

void store(BFloat16* out, __m256 low, __m256 high) noexcept {
  const __m256i lows = _mm256_srli_epi32(round_to_bfloat16(low), 16);
  const __m256i highs = _mm256_srli_epi32(round_to_bfloat16(high), 16);
  // Packing works within 128-bit lanes; the permutation restores the order.
  store_words(out, _mm256_permute4x64_epi64(_mm256_packus_epi32(lows, highs), 0xd8));
}

template <class T>
void widen_vectors(float* out, const T* in, uint64_t n) noexcept {
  uint64_t i = 0;
  for (; i + kVector <= n; i += kVector) _mm256_storeu_ps(out + i, load(in + i));
  for (; i < n; ++i) out[i] = widen(in[i]);
}

template <class T>
void narrow_vectors(T* out, const float* in, uint64_t n) noexcept {
  uint64_t i = 0;
  for (; i + 2 * kVector <= n; i += 2 * kVector) {
    store(out + i, _mm256_loadu_ps(in + i), _mm256_loadu_ps(in + i + kVector));
  }
  for (; i < n; ++i) narrow(in[i], out + i);
}

Pair add(const Pair& x, const Pair& y) noexcept { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }

// Scales a sum and never a summand, so there is no product that a compiler could contract with an addition. Of two
// inputs the addresses stay in registers; a compiler reads those in `in` again after each store to `out`.
template <class T>
uint64_t sum_vectors(T* out, const void* const* in, int32_t inputs, uint64_t count, double post) noexcept {
  const __m256 scale = _mm256_set1_ps(static_cast<float>(post));
  const T *first = static_cast<const T*>(in[0]), *second = static_cast<const T*>(in[inputs > 1]);
  uint64_t i = 0;
  for (; i + 2 * kVector <= count; i += 2 * kVector) {
    Pair sum = load_pair(first + i);
    if (inputs > 1) sum = add(sum, load_pair(second + i));
    for (int32_t k = 2; k < inputs; ++k) sum = add(sum, load_pair(static_cast<const T*>(in[k]) + i));
    store_pair(out + i, {_mm256_mul_ps(sum.a, scale), _mm256_mul_ps(sum.b, scale)});
  }
  return i;
}

void widen_block(float* out, const Float16* in, uint64_t n) noexcept { widen_vectors(out, in, n); }
void narrow_block(Float16* out, const float* in, uint64_t n) noexcept { narrow_vectors(out, in, n); }
uint64_t sum_in_registers(Float16* out, const void* const* in, int32_t inputs, uint64_t count, double post) noexcept {
  return sum_vectors(out, in, inputs, count, post);
}

void widen_block(float* out, const BFloat16* in, uint64_t n) noexcept { widen_vectors(out, in, n); }
void narrow_block(BFloat16* out, const float* in, uint64_t n) noexcept { narrow_vectors(out, in, n); }
uint64_t sum_in_registers(BFloat16* out, const void* const* in, int32_t inputs, uint64_t count, double post) noexcept {
  return sum_vectors(out, in, inputs, count, post);
}

}  // namespace
}  // namespace hvd

#include "kernels/fold.h"

namespace hvd {

const KernelTable& avx2_kernels() noexcept { return kTable; }

}  // namespace hvd

#endif  // __x86_64__
