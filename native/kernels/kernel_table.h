// The kernels of one instruction set, by dtype and operation. Averages of integers are rows of their own, with sums
// only, because their partial results have other types.

#pragma once

#include <cstdint>

namespace hvd {

using FoldAll = void(void* out, bool out_is_partial, const void* const* in, int32_t inputs, uint64_t count, double pre,
                     double post) noexcept;
using FoldHop = void(void* out, bool out_is_partial, const void* a, bool a_is_partial, const void* own, uint64_t count,
                     double pre, double post) noexcept;

using Close = void(void* out, const void* partials, uint64_t count, double post) noexcept;

constexpr int32_t kDTypes = 10;
constexpr int32_t kIntegers = 5;  // the first dtypes
constexpr int32_t kOps = 4;

struct KernelRow {
  uint64_t item_bytes;
  uint64_t partial_bytes;
  Close* close;
  FoldAll* all[kOps];  // sum, min, max, product
  FoldHop* hop[kOps];
};

using KernelTable = KernelRow[kDTypes + kIntegers];

const KernelTable& plain_kernels() noexcept;
#ifdef __x86_64__
const KernelTable& avx2_kernels() noexcept;  // needs AVX2 and F16C
#endif

}  // namespace hvd
