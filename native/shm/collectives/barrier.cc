// A barrier is a chunk without data: each rank passes a stage of it and waits until all have. One round, each rank
// reads size - 1 gates.

#include "shm/plane.h"

namespace hvd::shm {

hvd_status barrier(Plane& plane) noexcept {
  const uint64_t chunk = plane.take_chunks(1);
  plane.pass(kFilled, chunk);
  if (hvd_status status = plane.wait_for_all(kFilled, chunk)) return status;
  plane.pass(kFinished, chunk);
  return HVD_OK;
}

}  // namespace hvd::shm
