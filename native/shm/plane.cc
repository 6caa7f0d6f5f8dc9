#include "shm/plane.h"

#include <algorithm>
#include <new>

namespace hvd::shm {

hvd_status Plane::use(Arena* arena, const int32_t* regions) noexcept {
  if (!arena->has(regions, rank_, size())) return HVD_INVALID;
  regions_.reset(new (std::nothrow) int32_t[size()]);
  if (!regions_) return HVD_OK;  // through the slots, then
  std::copy(regions, regions + size(), regions_.get());
  arena_ = arena;
  return HVD_OK;
}

uint64_t Plane::take_chunks(uint64_t count) noexcept {
  const uint64_t first = next_chunk_;
  next_chunk_ += count;
  return first;
}

hvd_status Plane::wait(int32_t peer, Stage stage, uint64_t chunk) noexcept {
  return segment_.gate(peer, stage).wait(chunk + 1, &patience_, aborted_);
}

// Each rank begins with its right neighbour, so that ranks do not all read the same line at once.
hvd_status Plane::wait_for_all(Stage stage, uint64_t chunk) noexcept {
  for (int32_t distance = 1; distance < size(); ++distance) {
    if (hvd_status status = wait((rank_ + distance) % size(), stage, chunk)) return status;
  }
  return HVD_OK;
}

hvd_status Plane::wait_for_slot(uint64_t chunk) noexcept {
  const uint64_t slots = static_cast<uint64_t>(segment_.geometry().slots);
  return chunk < slots ? HVD_OK : wait_for_all(kFinished, chunk - slots);
}

hvd_status Plane::status() noexcept {
  if (failure_ != HVD_OK) return failure_;
  // Relaxed: the flag carries no data.
  return aborted_.load(std::memory_order_relaxed) != 0 ? HVD_ABORTED : HVD_OK;
}

hvd_status Plane::record(hvd_status status) noexcept {
  failure_ = status;
  return status;
}

void Plane::abort() noexcept {
  // Sequentially consistent: set before any bell is rung, so a waiter that missed the flag is caught by its bell. The
  // flag is this process's own: other ranks that sleep at a bell look up, and sleep on.
  aborted_.store(1, std::memory_order_seq_cst);
  for (int32_t rank = 0; rank < size(); ++rank) {
    for (int stage = 0; stage < kStages; ++stage) segment_.gate(rank, static_cast<Stage>(stage)).ring();
  }
}

}  // namespace hvd::shm
