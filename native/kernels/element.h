// Element types: what they hold, in what type they are accumulated, and how one value is widened, narrowed and scaled.
//
// The conversions are branch-free selects over integers, so that compilers turn a loop over them into vector code on
// any architecture. None of them computes with a subnormal float32, so they are exact even where a program has asked
// the processor to flush subnormals to zero.
//
// Included by one translation unit per instruction set, hence the unnamed namespace: the linker must not merge code
// that was compiled for different processors.

#pragma once

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

// An integer of which averages are made. Sums are wide enough for 2^16 of them, which is the most ranks that a job has.
template <class T>
struct Averaged {
  T value;
};

// A sum of 64-bit integers, high * 2^32 + low: the sum of their upper halves, and of their lower halves, unsigned.
struct SumOfHalves {
  int64_t high;
  int64_t low;
};

// What a peer sent may be anything, and signed overflow is undefined.
inline int64_t add_wrapping(int64_t a, int64_t b) noexcept {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

inline SumOfHalves operator+(const SumOfHalves& a, const SumOfHalves& b) noexcept {
  return {add_wrapping(a.high, b.high), add_wrapping(a.low, b.low)};
}

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
struct AccumulatorOf<Averaged<T>> {
  using Type = std::conditional_t<sizeof(T) <= 2, int32_t, std::conditional_t<sizeof(T) == 4, int64_t, SumOfHalves>>;
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

template <class T>
inline Accumulator<Averaged<T>> widen(Averaged<T> number) noexcept {
  if constexpr (std::is_same_v<T, int64_t>) {
    return {number.value >> 32, number.value & 0xffffffff};
  } else {
    return number.value;
  }
}

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

// The integer that is next to `value` toward zero, or else the limit of T on its side; 0 for NaN.
template <class T>
inline T truncated(double value) noexcept {
  constexpr double kLowest = static_cast<double>(std::numeric_limits<T>::min());
  constexpr double kBeyond = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
  if (value >= kBeyond) return std::numeric_limits<T>::max();
  if (value <= kLowest) return std::numeric_limits<T>::min();
  return value == value ? static_cast<T>(value) : T{0};
}

// value * scale in the accumulator's own precision; integers as reduce.h states.
template <class A>
inline A scaled(A value, double scale) noexcept {
  if constexpr (std::is_floating_point_v<A>) {
    return value * static_cast<A>(scale);
  } else {
    return truncated<A>(static_cast<double>(value) * scale);
  }
}

template <class T>
inline Averaged<T> scaled(Averaged<T> number, double scale) noexcept {
  return {scaled(number.value, scale)};
}

// The whole number of which `scale` is the inverse, as nearly as a double can be; 0 if there is none.
inline int32_t divisor_of(double scale) noexcept {
  const double inverse = 1.0 / scale;
  if (!(inverse >= 1.0 && inverse <= 2147483647.0)) return 0;
  const int32_t whole = static_cast<int32_t>(inverse + 0.5);
  return 1.0 / whole == scale ? whole : 0;
}

inline double double_of(int32_t sum) noexcept { return sum; }
inline double double_of(int64_t sum) noexcept { return static_cast<double>(sum); }
inline double double_of(const SumOfHalves& sum) noexcept {
  return static_cast<double>(sum.high) * 0x1p32 + static_cast<double>(sum.low);
}

// sum / divisor, truncated toward zero, or the limit of T on its side. Sums below 2^53 are exact in double, and no
// quotient of theirs is so close to the next whole number that it is rounded to that.
template <class T, class A>
inline T quotient(A sum, int32_t divisor) noexcept {
  return truncated<T>(double_of(sum) / divisor);
}

// Long division by digits of 32 bits, rounded down at first, so that remainders are not negative.
template <class T>
inline int64_t quotient(const SumOfHalves& sum, int32_t divisor) noexcept {
  const int64_t high = add_wrapping(sum.high, sum.low >> 32), low = sum.low & 0xffffffff;
  const int64_t upper = high / divisor - (high % divisor < 0), rest = high - upper * divisor;
  if (upper > std::numeric_limits<int32_t>::max()) return std::numeric_limits<int64_t>::max();
  if (upper < std::numeric_limits<int32_t>::min()) return std::numeric_limits<int64_t>::min();
  const int64_t dividend = rest * (int64_t{1} << 32) + low;
  const int64_t down = upper * (int64_t{1} << 32) + dividend / divisor;
  return down < 0 && dividend % divisor != 0 ? down + 1 : down;
}

}  // namespace
}  // namespace hvd
