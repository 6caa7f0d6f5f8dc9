// The loops of reduce.h, written once and compiled per instruction set.
//
// Vectors are walked in blocks that stay in the first-level cache. Within a block every input is brought into the
// accumulator's type (`prepare`, which costs nothing where input and accumulator are the same type and unscaled),
// folded, and narrowed to the output. Two unscaled float32 inputs are therefore one pass straight to the output, and so
// are sums of 16-bit floats where the processor converts them in registers (`sum_in_registers`).
// Scaling is a pass of its own so that no compiler can contract it with the fold into a fused multiply-add, whose
// different rounding would make results depend on the processor.
//
// Included by one translation unit per instruction set; see element.h for why the namespace is unnamed.

#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/element.h"
#include "kernels/kernel_table.h"

namespace hvd {
namespace {

// Three blocks of accumulators and the inputs of a block fit the 32 KiB of a small first-level cache.
constexpr uint64_t kBlockBytes = 4096;
template <class A>
constexpr uint64_t kBlock = kBlockBytes / sizeof(A);

// Signed overflow is undefined, so integers wrap around as unsigned; 16-bit products need 32 unsigned bits.
template <class A>
using Wrapping = std::conditional_t<std::is_integral_v<A>, std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>, A>;

struct Sum {
  template <class A>
  static A apply(A a, A b) noexcept {
    return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(b));
  }
};
struct Product {
  template <class A>
  static A apply(A a, A b) noexcept {
    return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(b));
  }
};
// `a != a` holds for NaN only; a NaN in b loses no comparison and is taken by the else.
struct Min {
  template <class A>
  static A apply(A a, A b) noexcept {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class A>
  static A apply(A a, A b) noexcept {
    return a > b || a != a ? a : b;
  }
};

template <class T>
void widen_block(Accumulator<T>* out, const T* in, uint64_t n) noexcept {
  for (uint64_t i = 0; i < n; ++i) out[i] = widen(in[i]);
}

template <class T>
void narrow_block(T* out, const Accumulator<T>* in, uint64_t n) noexcept {
  for (uint64_t i = 0; i < n; ++i) narrow(in[i], out + i);
}

template <class A>
void scale_block(A* out, const A* in, uint64_t n, double scale) noexcept {
  for (uint64_t i = 0; i < n; ++i) out[i] = scaled(in[i], scale);
}

template <class T>
constexpr bool kIsAveraged = false;
template <class T>
constexpr bool kIsAveraged<Averaged<T>> = true;

// Integers are scaled before they are widened, so that each is truncated as in any other reduction.
template <class T>
void widen_scaled_block(Accumulator<Averaged<T>>* out, const Averaged<T>* in, uint64_t n, double scale) noexcept {
  for (uint64_t i = 0; i < n; ++i) out[i] = widen(scaled(in[i], scale));
}

// Scaling by 1 / n is division by n, and exact: the double next to 1/49, times 49, is less than 1.
template <class T>
void average_block(Averaged<T>* out, const Accumulator<Averaged<T>>* sums, uint64_t n, double scale) noexcept {
  if (const int32_t divisor = divisor_of(scale)) {
    for (uint64_t i = 0; i < n; ++i) out[i].value = quotient<T>(sums[i], divisor);
  } else {
    for (uint64_t i = 0; i < n; ++i) out[i].value = truncated<T>(double_of(sums[i]) * scale);
  }
}

// The block as scaled accumulators: `in` itself if nothing is to be done, else `scratch`.
template <class T>
const Accumulator<T>* prepare(const T* in, uint64_t n, double scale, Accumulator<T>* scratch) noexcept {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    if (scale == 1.0) return in;
    scale_block(scratch, in, n, scale);
  } else if constexpr (kIsAveraged<T>) {
    if (scale == 1.0) {
      widen_block(scratch, in, n);
    } else {
      widen_scaled_block(scratch, in, n, scale);
    }
  } else {
    widen_block(scratch, in, n);
    if (!std::is_same_v<T, Bool> && scale != 1.0) scale_block(scratch, scratch, n, scale);
  }
  return scratch;
}

template <class Op, class A>
void combine(A* out, const A* a, const A* b, uint64_t n) noexcept {
  for (uint64_t i = 0; i < n; ++i) out[i] = Op::apply(a[i], b[i]);
}

// Writes the accumulators to the output type. `acc` may be `out` itself.
template <class T>
void finish(T* out, Accumulator<T>* acc, uint64_t n, double scale) noexcept {
  if constexpr (kIsAveraged<T>) {
    average_block(out, acc, n, scale);
  } else {
    if (!std::is_same_v<T, Bool> && scale != 1.0) scale_block(acc, acc, n, scale);
    if constexpr (!std::is_same_v<T, Accumulator<T>>) narrow_block(out, static_cast<const Accumulator<T>*>(acc), n);
  }
}

// Where the fold may leave its result: in the output if that holds accumulators, else in scratch.
template <class T>
Accumulator<T>* target(T* out, Accumulator<T>* scratch) noexcept {
  if constexpr (std::is_same_v<T, Accumulator<T>>) return out;
  return scratch;
}

// Sums as many of the first elements as whole registers hold, without accumulators in memory; how many that was. What
// the processor has for a type is an overload that the translation unit declares before; this one is for all others.
template <class T>
uint64_t sum_in_registers(T*, const void* const*, int32_t, uint64_t, double) noexcept {
  return 0;
}

template <class T, class Op>
void fold_all(void* out_bytes, bool out_is_partial, const void* const* in, int32_t inputs, uint64_t count, double pre,
              double post) noexcept {
  using A = Accumulator<T>;
  alignas(64) A first[kBlock<A>], next[kBlock<A>], sum[kBlock<A>];
  uint64_t begin = 0;
  if (std::is_same_v<Op, Sum> && !out_is_partial && pre == 1.0) {
    begin = sum_in_registers(static_cast<T*>(out_bytes), in, inputs, count, post);
  }
  for (; begin < count; begin += kBlock<A>) {
    const uint64_t n = count - begin < kBlock<A> ? count - begin : kBlock<A>;
    T* out = static_cast<T*>(out_bytes) + begin;
    A* last = out_is_partial ? static_cast<A*>(out_bytes) + begin : target(out, sum);
    const A* a = prepare(static_cast<const T*>(in[0]) + begin, n, pre, first);
    for (int32_t k = 1; k < inputs; ++k) {
      // Until the last input is read the output must stay untouched, since it may be one of them.
      A* result = k + 1 == inputs ? last : sum;
      combine<Op>(result, a, prepare(static_cast<const T*>(in[k]) + begin, n, pre, next), n);
      a = result;
    }
    if (a != last) std::memmove(last, a, n * sizeof(A));
    if (!out_is_partial) finish(out, last, n, post);
  }
}

template <class T, class Op>
void fold_hop(void* out, bool out_is_partial, const void* a_bytes, bool a_is_partial, const void* own, uint64_t count,
              double pre, double post) noexcept {
  using A = Accumulator<T>;
  alignas(64) A first[kBlock<A>], next[kBlock<A>], sum[kBlock<A>];
  for (uint64_t begin = 0; begin < count; begin += kBlock<A>) {
    const uint64_t n = count - begin < kBlock<A> ? count - begin : kBlock<A>;
    const A* a = a_is_partial ? static_cast<const A*>(a_bytes) + begin
                              : prepare(static_cast<const T*>(a_bytes) + begin, n, pre, first);
    const A* b = prepare(static_cast<const T*>(own) + begin, n, pre, next);
    if (out_is_partial) {
      combine<Op>(static_cast<A*>(out) + begin, a, b, n);
      continue;
    }
    T* block = static_cast<T*>(out) + begin;
    combine<Op>(target(block, sum), a, b, n);
    finish(block, target(block, sum), n, post);
  }
}

template <class T>
void close_partials(void* out, const void* in, uint64_t count, double post) noexcept {
  using A = Accumulator<T>;
  alignas(64) A sum[kBlock<A>];
  for (uint64_t begin = 0; begin < count; begin += kBlock<A>) {
    const uint64_t n = count - begin < kBlock<A> ? count - begin : kBlock<A>;
    T* block = static_cast<T*>(out) + begin;
    A* last = target(block, sum);
    std::memmove(last, static_cast<const A*>(in) + begin, n * sizeof(A));
    finish(block, last, n, post);
  }
}

template <class T, class SumOp = Sum, class ProductOp = Product>
constexpr KernelRow row() noexcept {
  return {sizeof(T),
          sizeof(Accumulator<T>),
          close_partials<T>,
          {fold_all<T, SumOp>, fold_all<T, Min>, fold_all<T, Max>, fold_all<T, ProductOp>},
          {fold_hop<T, SumOp>, fold_hop<T, Min>, fold_hop<T, Max>, fold_hop<T, ProductOp>}};
}

template <class T>
constexpr KernelRow average() noexcept {
  return {sizeof(T),
          sizeof(Accumulator<Averaged<T>>),
          close_partials<Averaged<T>>,
          {fold_all<Averaged<T>, Sum>},
          {fold_hop<Averaged<T>, Sum>}};
}

// In the order of the dtype numbers of hvdlite.h, and then the averages of integers in the same order.
constexpr KernelTable kTable = {row<uint8_t>(),     row<int8_t>(),         row<int16_t>(),     row<int32_t>(),
                                row<int64_t>(),     row<Float16>(),        row<BFloat16>(),    row<float>(),
                                row<double>(),      row<Bool, Max, Min>(), average<uint8_t>(), average<int8_t>(),
                                average<int16_t>(), average<int32_t>(),    average<int64_t>()};

}  // namespace
}  // namespace hvd
