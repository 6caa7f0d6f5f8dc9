// Chooses the kernels for this processor, once, and checks the arguments of the C interface.

#include "kernels/reduce.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernel_table.h"

namespace hvd {
namespace {

const KernelTable& choose_kernels() noexcept {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2_kernels();
#endif
  return plain_kernels();
}

const KernelTable& kernels() noexcept {
  static const KernelTable& chosen = choose_kernels();
  return chosen;
}

// The column of an operation in a kernel row, or -1.
int32_t column(int32_t op) noexcept {
  switch (op) {
    case HVD_AVERAGE:
    case HVD_SUM:
      return 0;
    case HVD_MIN:
      return 1;
    case HVD_MAX:
      return 2;
    case HVD_PRODUCT:
      return 3;
    default:
      return -1;
  }
}

const KernelRow& row(const hvd_reduction& reduction) noexcept {
  return kernels()[reduction.op == HVD_AVERAGE ? kDTypes + reduction.dtype : reduction.dtype];
}

}  // namespace

bool is_valid(const hvd_reduction& reduction) noexcept {
  const int32_t dtypes = reduction.op == HVD_AVERAGE ? kIntegers : kDTypes;
  return reduction.dtype >= 0 && reduction.dtype < dtypes && column(reduction.op) >= 0;
}

uint64_t item_bytes(int32_t dtype) noexcept { return kernels()[dtype].item_bytes; }

uint64_t partial_bytes(const hvd_reduction& reduction) noexcept { return row(reduction).partial_bytes; }

void reduce(void* out, const void* const* in, int32_t n, uint64_t count, const hvd_reduction& r) noexcept {
  row(r).all[column(r.op)](out, false, in, n, count, r.prescale, r.postscale);
}

void reduce_hop(void* out, bool out_is_partial, const void* a, bool a_is_partial, const void* own, uint64_t count,
                const hvd_reduction& r) noexcept {
  row(r).hop[column(r.op)](out, out_is_partial, a, a_is_partial, own, count, r.prescale, r.postscale);
}

void reduce_to_partials(void* out, const void* const* in, int32_t n, uint64_t count, const hvd_reduction& r) noexcept {
  row(r).all[column(r.op)](out, true, in, n, count, r.prescale, r.postscale);
}

void close_partials(void* out, const void* in, uint64_t count, const hvd_reduction& r) noexcept {
  row(r).close(out, in, count, r.postscale);
}

void reduce_to_all(uint8_t** outs, const void** in, int32_t own, int32_t n, uint64_t bytes,
                   const hvd_reduction& reduction) noexcept {
  constexpr uint64_t kBlockBytes = 16 << 10;
  for (uint64_t block; bytes > 0; bytes -= block) {
    block = std::min(bytes, kBlockBytes);
    reduce(outs[own], in, n, block / item_bytes(reduction.dtype), reduction);
    for (int32_t distance = 1; distance < n; ++distance) std::memcpy(outs[(own + distance) % n], outs[own], block);
    for (int32_t rank = 0; rank < n; ++rank) {
      in[rank] = static_cast<const uint8_t*>(in[rank]) + block;
      outs[rank] += block;
    }
  }
}

}  // namespace hvd

int32_t hvd_abi_version() { return HVD_ABI_VERSION; }

hvd_status hvd_reduce(void* out, const void* const* in, int32_t n, uint64_t count, const hvd_reduction* reduction) {
  if (n < 1 || !hvd::is_valid(*reduction)) return HVD_INVALID;
  hvd::reduce(out, in, n, count, *reduction);
  return HVD_OK;
}

hvd_status hvd_open_partials(void* partials, const hvd_span* spans, uint64_t n, const hvd_reduction* reduction) {
  if (!hvd::is_valid(*reduction)) return HVD_INVALID;
  char* out = static_cast<char*>(partials);
  for (const hvd_span* span = spans; span != spans + n; ++span) {
    const uint64_t count = span->bytes / hvd::item_bytes(reduction->dtype);
    const void* in = reinterpret_cast<const void*>(span->in);
    hvd::reduce_to_partials(out, &in, 1, count, *reduction);
    out += count * hvd::partial_bytes(*reduction);
  }
  return HVD_OK;
}

hvd_status hvd_close_partials(const void* partials, const hvd_span* spans, uint64_t n, const hvd_reduction* reduction) {
  if (!hvd::is_valid(*reduction)) return HVD_INVALID;
  const char* in = static_cast<const char*>(partials);
  for (const hvd_span* span = spans; span != spans + n; ++span) {
    const uint64_t count = span->bytes / hvd::item_bytes(reduction->dtype);
    hvd::close_partials(reinterpret_cast<void*>(span->out), in, count, *reduction);
    in += count * hvd::partial_bytes(*reduction);
  }
  return HVD_OK;
}
