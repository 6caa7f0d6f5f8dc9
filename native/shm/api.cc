// The C interface of the shared-memory plane: checks arguments once, so that nothing below has to.

#include <cerrno>
#include <new>

#include "hvdlite.h"
#include "kernels/reduce.h"
#include "shm/memory/arena.h"
#include "shm/plane.h"
#include "spans.h"

struct hvd_shm : hvd::shm::Plane {
  using Plane::Plane;
};

namespace {

hvd::shm::Geometry geometry_of(int32_t size, uint64_t chunk_bytes, int32_t slots) {
  // Slots hold whole cache lines; so any chunk length is one, of the next larger size.
  return {size, slots, hvd::shm::round_up(chunk_bytes, hvd::shm::kCacheLine)};
}

}  // namespace

uint64_t hvd_shm_bytes(int32_t size, uint64_t chunk_bytes, int32_t slots) {
  const hvd::shm::Geometry geometry = geometry_of(size, chunk_bytes, slots);
  return geometry.is_valid() ? geometry.segment_bytes() : 0;
}

hvd_status hvd_shm_open(int32_t fd, int32_t rank, int32_t size, uint64_t chunk_bytes, int32_t slots, int64_t spin_ns,
                        int64_t progress_timeout_ns, hvd_shm** out) {
  const hvd::shm::Geometry geometry = geometry_of(size, chunk_bytes, slots);
  if (!geometry.is_valid() || rank < 0 || rank >= size || progress_timeout_ns <= 0) return HVD_INVALID;
  hvd_shm* shm = new (std::nothrow) hvd_shm(rank, hvd::Patience{spin_ns, progress_timeout_ns});
  if (shm == nullptr) {
    errno = ENOMEM;
    return HVD_SYSTEM;
  }
  if (hvd_status status = shm->segment().map(fd, geometry)) {
    const int cause = errno;
    delete shm;
    errno = cause;
    return status;
  }
  *out = shm;
  return HVD_OK;
}

hvd_status hvd_shm_use_arena(hvd_shm* shm, hvd_arena* arena, const int32_t* regions) {
  return shm->use(arena, regions);
}

hvd_status hvd_shm_allreduce(hvd_shm* shm, const hvd_span* spans, uint64_t n, const hvd_reduction* reduction) {
  if (hvd_status status = shm->status()) return status;
  if (!hvd::is_valid(*reduction) || !hvd::are_elements(spans, n, hvd::item_bytes(reduction->dtype), true))
    return HVD_INVALID;
  return shm->record(hvd::shm::allreduce(*shm, spans, n, *reduction));
}

hvd_status hvd_shm_allgather(hvd_shm* shm, const hvd_span* spans, const uint64_t* counts) {
  if (hvd_status status = shm->status()) return status;
  return shm->record(hvd::shm::allgather(*shm, spans, counts));
}

hvd_status hvd_shm_reducescatter(hvd_shm* shm, const hvd_span* spans, const uint64_t* counts,
                                 const hvd_reduction* reduction, void* partials) {
  if (hvd_status status = shm->status()) return status;
  if (!hvd::is_valid(*reduction)) return HVD_INVALID;
  const int32_t written = partials == nullptr ? shm->rank() : -1;
  if (!hvd::are_elements(spans, counts, shm->size(), hvd::item_bytes(reduction->dtype), written)) return HVD_INVALID;
  return shm->record(hvd::shm::reducescatter(*shm, spans, counts, *reduction, static_cast<uint8_t*>(partials)));
}

hvd_status hvd_shm_alltoall(hvd_shm* shm, const hvd_span* sends, const uint64_t* send_counts, const hvd_span* receives,
                            const uint64_t* receive_counts, const uint64_t* matrix) {
  if (hvd_status status = shm->status()) return status;
  const uint64_t *row = matrix + static_cast<int64_t>(shm->rank()) * shm->size(), *column = matrix + shm->rank();
  if (!hvd::have_bytes(sends, send_counts, row, 1, shm->size()) ||
      !hvd::have_bytes(receives, receive_counts, column, shm->size(), shm->size())) {
    return HVD_INVALID;
  }
  return shm->record(hvd::shm::alltoall(*shm, sends, send_counts, receives, receive_counts, matrix));
}

hvd_status hvd_shm_barrier(hvd_shm* shm) {
  if (hvd_status status = shm->status()) return status;
  return shm->record(hvd::shm::barrier(*shm));
}

uint64_t hvd_shm_copied_bytes(const hvd_shm* shm) { return shm->copied_bytes(); }

void hvd_shm_abort(hvd_shm* shm) { shm->abort(); }

void hvd_shm_close(hvd_shm* shm) { delete shm; }
