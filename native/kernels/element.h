// Element types: what they hold, in what type they are accumulated, and how one value is widened, narrowed and scaled.
//
// The conversions are branch-free selects over integers, so that compilers turn a loop over them into vector code on
// any architecture. None of them computes with a subnormal float32, so they are exact even where a program has asked
// the processor to flush subnormals to zero.
//
// Included by one translation unit per instruction set, hence the unnamed namespace: the linker must not merge code
// that was compiled for different processors.

#ifndef HVDLITE_KERNELS_ELEMENT_H_
#define HVDLITE_KERNELS_ELEMENT_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace hvd {
namespace {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Bool {
  uint8_t byte;
};

template <class T>
struct AccumulatorOf {
  using Type = T;
};
template <>
struct AccumulatorOf<Float16> {
  using Type = float;
};
template <>
struct AccumulatorOf<BFloat16> {
  using Type = float;
};
template <>
struct AccumulatorOf<Bool> {
  using Type = uint8_t;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::Type;

inline uint32_t bits_of(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) noexcept {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
inline T widen(T value) noexcept {
  return value;
}

inline uint8_t widen(Bool value) noexcept { return value.byte != 0; }

inline float widen(BFloat16 value) noexcept { return float_of(uint32_t{value.bits} << 16); }

// The exponent is moved from bias 15 to bias 127. Infinity and NaN move a second time, to the top; a subnormal is read
// as 1.mantissa * 2^-14 and that leading 1 is taken off by one exact subtraction.
inline float widen(Float16 value) noexcept {
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const uint32_t magnitude = uint32_t{value.bits & 0x7fffu} << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  const uint32_t normal = magnitude + kRebias + (exponent == 0x0f800000u ? kRebias : 0u);
  const uint32_t subnormal = bits_of(float_of(magnitude + kRebias + (1u << 23)) - float_of(kRebias + (1u << 23)));
  return float_of((exponent == 0 ? subnormal : normal) | uint32_t{value.bits & 0x8000u} << 16);
}

template <class T>
inline void narrow(T value, T* out) noexcept {
  *out = value;
}

inline void narrow(uint8_t value, Bool* out) noexcept { out->byte = value; }

// Rounds to nearest even by adding just under half a unit, plus the bit that makes ties even. NaN keeps its upper
// payload and becomes quiet, since truncating it could leave the bits of infinity.
inline void narrow(float value, BFloat16* out) noexcept {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40u;
  out->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Below 2^-14 the result is subnormal: adding 0.5 aligns the mantissa so that the addition itself rounds to nearest
// even and leaves the answer in the low bits. From 65520 on the result is infinity, which the clamp makes of it.
inline void narrow(float value, Float16* out) noexcept {
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const uint32_t sign = bits_of(value) >> 16 & 0x8000u;
  const uint32_t bits = bits_of(value) & 0x7fffffffu;
  const uint32_t rounded = (bits - kRebias + 0xfffu + (bits >> 13 & 1u)) >> 13;
  const uint32_t normal = bits >= 0x477ff000u ? 0x7c00u : rounded;
  const uint32_t subnormal = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
  const uint32_t number = bits < 0x38800000u ? subnormal : normal;
  const uint32_t quiet = 0x7e00u | (bits >> 13 & 0x1ffu);
  out->bits = static_cast<uint16_t>((bits > 0x7f800000u ? quiet : number) | sign);
}

// value * scale in the accumulator's own precision; integers as reduce.h states.
template <class A>
inline A scaled(A value, double scale) noexcept {
  if constexpr (std::is_floating_point_v<A>) {
    return value * static_cast<A>(scale);
  } else {
    constexpr double kLowest = static_cast<double>(std::numeric_limits<A>::min());
    constexpr double kBeyond = 2.0 * static_cast<double>(std::numeric_limits<A>::max() / 2 + 1);
    const double product = static_cast<double>(value) * scale;
    if (product >= kBeyond) return std::numeric_limits<A>::max();
    if (product <= kLowest) return std::numeric_limits<A>::min();
    return product == product ? static_cast<A>(product) : A{0};
  }
}

}  // namespace
}  // namespace hvd

#endif  // HVDLITE_KERNELS_ELEMENT_H_
