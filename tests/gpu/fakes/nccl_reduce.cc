#include "nccl_reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct Half {
  using Value = float;
  _Float16 bits;
  Value value() const { return static_cast<float>(bits); }
  void set(Value value) { bits = static_cast<_Float16>(value); }
};

struct Brain {
  using Value = float;
  uint16_t bits;
  Value value() const {
    uint32_t wide = uint32_t{bits} << 16;
    float result;
    std::memcpy(&result, &wide, 4);
    return result;
  }
  void set(Value value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    if (std::isnan(value)) {
      bits = static_cast<uint16_t>(wide >> 16 | 0x40);
    } else {
      bits = static_cast<uint16_t>((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
    }
  }
};

// A float of 8 bits with so many of the mantissa. As CUDA's, it is rounded to the nearest, and to the greatest finite
// one.
template <int kMantissa>
struct Quarter {
  using Value = float;
  static constexpr int kBias = kMantissa == 3 ? 7 : 15;
  static constexpr int kInfinity = kMantissa == 3 ? 0x7F : 0x7C;  // e4m3 has none, and NaN there
  uint8_t bits;
  static float magnitude(int code) {
    int exponent = code >> kMantissa, mantissa = code & ((1 << kMantissa) - 1);
    if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissa);
    return std::ldexp(static_cast<float>(mantissa + (1 << kMantissa)), exponent - kBias - kMantissa);
  }
  Value value() const {
    int code = bits & 0x7F;
    float found = magnitude(code);
    if (code >= kInfinity) found = kMantissa == 2 && code == kInfinity ? INFINITY : NAN;
    return bits & 0x80 ? -found : found;
  }
  void set(Value value) {
    int nearest = 0;
    for (int code = 1; code < kInfinity; code++) {
      float before = std::abs(std::abs(value) - magnitude(nearest)), now = std::abs(std::abs(value) - magnitude(code));
      if (now < before || (now == before && code % 2 == 0)) nearest = code;
    }
    if (std::isinf(value)) nearest = kInfinity - 1;
    if (std::isnan(value)) nearest = 0x7F;
    bits = static_cast<uint8_t>(nearest | (std::signbit(value) ? 0x80 : 0));
  }
};

template <typename T>
struct Plain {
  using Value = T;
  T bits;
  Value value() const { return bits; }
  void set(Value value) { bits = value; }
};

template <typename T>
T folded(T left, T right, int operation) {
  switch (operation) {
    case kProduct:
      return static_cast<T>(left * right);
    case kMax:
      return std::max(left, right);
    case kMin:
      return std::min(left, right);
    default:
      return static_cast<T>(left + right);
  }
}

template <typename E>
typename E::Value rounded(double value) {
  E element;
  element.set(static_cast<typename E::Value>(value));
  return element.value();
}

// Averages of floats are sums of elements times the rounded 1 / ranks, as NCCL's are; those of integers are divided.
template <typename E>
void reduce_as(const std::vector<const void*>& inputs, void* output, size_t count, int operation, double factor) {
  using V = typename E::Value;
  bool divides = operation == kAverage && std::is_integral_v<V>;
  if (operation == kAverage && !divides) factor = rounded<E>(1.0 / inputs.size());
  auto scaled = [&](V value) { return factor == 1 ? value : rounded<E>(value * static_cast<V>(factor)); };
  for (size_t index = 0; index < count; index++) {
    V total = scaled(static_cast<const E*>(inputs[0])[index].value());
    for (size_t rank = 1; rank < inputs.size(); rank++) {
      total = folded<V>(total, scaled(static_cast<const E*>(inputs[rank])[index].value()), operation);
    }
    if (divides) total = static_cast<V>(total / static_cast<V>(inputs.size()));
    static_cast<E*>(output)[index].set(total);
  }
}

// Calls `act` with a null pointer to the elements' C++ type.
template <typename F>
bool with_type(int type, F act) {
  switch (type) {
    case 0:
      return act(static_cast<Plain<int8_t>*>(nullptr)), true;
    case 1:
      return act(static_cast<Plain<uint8_t>*>(nullptr)), true;
    case 2:
      return act(static_cast<Plain<int32_t>*>(nullptr)), true;
    case 3:
      return act(static_cast<Plain<uint32_t>*>(nullptr)), true;
    case 4:
      return act(static_cast<Plain<int64_t>*>(nullptr)), true;
    case 5:
      return act(static_cast<Plain<uint64_t>*>(nullptr)), true;
    case 6:
      return act(static_cast<Half*>(nullptr)), true;
    case 7:
      return act(static_cast<Plain<float>*>(nullptr)), true;
    case 8:
      return act(static_cast<Plain<double>*>(nullptr)), true;
    case 9:
      return act(static_cast<Brain*>(nullptr)), true;
    case 10:
      return act(static_cast<Quarter<3>*>(nullptr)), true;
    case 11:
      return act(static_cast<Quarter<2>*>(nullptr)), true;
    default:
      return false;
  }
}

}  // namespace

size_t size_of(int type) {
  size_t size = 0;
  with_type(type, [&](auto* element) { size = sizeof(*element); });
  return size;
}

void reduce(const std::vector<const void*>& inputs, void* output, size_t count, int type, int operation,
            double factor) {
  with_type(type, [&](auto* element) {
    reduce_as<std::remove_pointer_t<decltype(element)>>(inputs, output, count, operation, factor);
  });
}

double scalar_at(const void* address, int type) {
  double scalar = 0;
  with_type(type, [&](auto* element) {
    std::remove_pointer_t<decltype(element)> found;
    std::memcpy(&found, address, sizeof(found));
    scalar = static_cast<double>(found.value());
  });
  return scalar;
}
