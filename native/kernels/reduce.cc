// Chooses the kernels for this processor, once, and checks the arguments of the C interface.

#include "kernels/reduce.h"

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

}  // namespace

bool is_valid(const hvd_reduction& reduction) noexcept {
  return reduction.dtype >= 0 && reduction.dtype < kDTypes && column(reduction.op) >= 0;
}

uint64_t item_bytes(int32_t dtype) noexcept { return kernels()[dtype].item_bytes; }

uint64_t partial_bytes(int32_t dtype) noexcept { return kernels()[dtype].partial_bytes; }

void reduce(void* out, const void* const* in, int32_t n, uint64_t count, const hvd_reduction& r) noexcept {
  kernels()[r.dtype].all[column(r.op)](out, false, in, n, count, r.prescale, r.postscale);
}

void reduce_hop(void* out, bool out_is_partial, const void* a, bool a_is_partial, const void* own, uint64_t count,
                const hvd_reduction& r) noexcept {
  kernels()[r.dtype].hop[column(r.op)](out, out_is_partial, a, a_is_partial, own, count, r.prescale, r.postscale);
}

void reduce_to_partials(void* out, const void* const* in, int32_t n, uint64_t count, const hvd_reduction& r) noexcept {
  kernels()[r.dtype].all[column(r.op)](out, true, in, n, count, r.prescale, r.postscale);
}

void close_partials(void* out, const void* in, uint64_t count, const hvd_reduction& r) noexcept {
  kernels()[r.dtype].close(out, in, count, r.postscale);
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
    out += count * hvd::partial_bytes(reduction->dtype);
  }
  return HVD_OK;
}

hvd_status hvd_close_partials(const void* partials, const hvd_span* spans, uint64_t n, const hvd_reduction* reduction) {
  if (!hvd::is_valid(*reduction)) return HVD_INVALID;
  const char* in = static_cast<const char*>(partials);
  for (const hvd_span* span = spans; span != spans + n; ++span) {
    const uint64_t count = span->bytes / hvd::item_bytes(reduction->dtype);
    hvd::close_partials(reinterpret_cast<void*>(span->out), in, count, *reduction);
    in += count * hvd::partial_bytes(reduction->dtype);
  }
  return HVD_OK;
}
