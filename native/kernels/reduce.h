// Element-wise folds of several vectors: the arithmetic of every all-reduce.
//
// Floating point is folded in the order of the inputs; float16 and bfloat16 are widened to float32, folded and scaled
// there, and rounded once (to nearest even). NaN stays NaN, and min and max of anything with NaN are NaN. Integers wrap
// around. A scale other than 1 multiplies floats in the accumulator's precision; integers are scaled in double,
// truncated toward zero, and saturate. bool is not scaled; its sum and max are *or*, its product and min are *and*.
//
// An average is a sum of integers that does not wrap around before it is scaled. Scaled by 1 / n, it is divided by n,
// exactly, and truncated toward zero. An average of floats is an ordinary sum.
//
// Every function here trusts its arguments: `is_valid` first. Element pointers are aligned to their type, and `out`
// may equal any input but must not overlap one otherwise.

#pragma once

#include <cstdint>

#include "hvdlite.h"

namespace hvd {

// True if `dtype` and `op` are known numbers that go together.
bool is_valid(const hvd_reduction& reduction) noexcept;

// Bytes of one element of a valid dtype.
uint64_t item_bytes(int32_t dtype) noexcept;

// Bytes of one element of a partial result, which has the accumulator's type: float32 for 16-bit floats, and otherwise
// the dtype itself. For averages it is a sum: int32 for integers of 8 and 16 bits, int64 for integers of 32 bits, and
// for integers of 64 bits two int64, the sum of their upper halves, signed, and of their lower halves, unsigned.
uint64_t partial_bytes(const hvd_reduction& reduction) noexcept;

// out = post * ((pre * in[0]) op (pre * in[1]) op ...), folded from left to right; n >= 1.
void reduce(void* out, const void* const* in, int32_t n, uint64_t count, const hvd_reduction& reduction) noexcept;

// As `reduce` of `bytes` into outs[own], and copies the result to the other outs, block by block while it is in the
// first-level cache. Advances all pointers.
void reduce_to_all(uint8_t** outs, const void** in, int32_t own, int32_t n, uint64_t bytes,
                   const hvd_reduction& reduction) noexcept;

// One hop of a ring: out = a op (pre * own), and times post unless `out` is a partial result.
//
// `a` is either raw input, which is scaled by pre here, or the partial result of an earlier hop, of inputs that were
// scaled. bool partials are 0 or 1.
void reduce_hop(void* out, bool out_is_partial, const void* a, bool a_is_partial, const void* own, uint64_t count,
                const hvd_reduction& reduction) noexcept;

// As `reduce`, but leaves a partial result, which may equal an input only where it has the input's type.
void reduce_to_partials(void* out, const void* const* in, int32_t n, uint64_t count,
                        const hvd_reduction& reduction) noexcept;

// out = post * in, of partial results, rounded to the dtype.
void close_partials(void* out, const void* in, uint64_t count, const hvd_reduction& reduction) noexcept;

}  // namespace hvd
