// One rank's view of the shared-memory plane, and the collectives that run on it.
//
// Every collective cuts its data into chunks, and chunks are numbered through the whole life of the plane: all ranks
// run the same collectives over the same sizes, so they agree on the numbers without talking. Chunk g uses slot g
// modulo `slots` of each rank. Invariants, for every rank and across collectives of any kind:
//
//   - gate(r, stage) = g + 1 means that rank r has passed `stage` of chunk g and of every chunk before that it takes
//     part in; gates of stages that a collective does not need are simply left behind, they never fall;
//   - rank r writes into slot g % slots only after every peer has finished chunk g - slots: nobody still reads it;
//   - kFinished is passed for every chunk by every rank, also by those that had nothing to write or read.
//
// So ranks may be ahead of each other by at most `slots` chunks, whatever their speed, and a rank returns from a
// collective while slower peers still read its slots.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#include "hvdlite.h"
#include "shm/memory/arena.h"
#include "shm/memory/segment.h"

namespace hvd::shm {

class Plane {
 public:
  Plane(int32_t rank, const Patience& patience) noexcept : rank_(rank), patience_(patience) {}

  Segment& segment() noexcept { return segment_; }
  int32_t rank() const noexcept { return rank_; }
  int32_t size() const noexcept { return segment_.geometry().size; }

  // Has the collectives work in the memory of the ranks, whose regions in `arena` are `regions`. It outlives the plane.
  hvd_status use(Arena* arena, const int32_t* regions) noexcept;
  bool has_arena() const noexcept { return arena_ != nullptr && is_shared(); }
  bool is_shared() const noexcept { return arena_->is_shared(); }
  // True if what this rank has read in the regions of all was still shared.
  bool are_all_shared() const noexcept {
    for (int32_t rank = 0; rank < segment_.geometry().size; ++rank) {
      if (arena_->is_private(regions_[rank])) return false;
    }
    return is_shared();
  }
  uint8_t* region(int32_t rank) const noexcept { return arena_->region(regions_[rank]); }
  const Arena& arena() const noexcept { return *arena_; }

  // Numbers of `count` new chunks, of which the first is returned.
  uint64_t take_chunks(uint64_t count) noexcept;

  void pass(Stage stage, uint64_t chunk) noexcept { segment_.gate(rank_, stage).advance(chunk + 1); }
  hvd_status wait(int32_t peer, Stage stage, uint64_t chunk) noexcept;
  hvd_status wait_for_all(Stage stage, uint64_t chunk) noexcept;

  // Waits until this rank's slot of `chunk` may be written.
  hvd_status wait_for_slot(uint64_t chunk) noexcept;

  // How collectives copy what tensors hold: into slots, out of them, and from tensor to tensor.
  void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) noexcept {
    std::memcpy(to, from, bytes);
    copied_bytes_.store(copied_bytes() + bytes, std::memory_order_relaxed);  // one thread runs collectives
  }
  uint64_t copied_bytes() const noexcept { return copied_bytes_.load(std::memory_order_relaxed); }

  // A plane that failed once stays failed: its ranks no longer agree on where they are.
  hvd_status record(hvd_status status) noexcept;
  hvd_status status() noexcept;

  // Ends this rank's collectives only: peers learn of a failure over the control link. Any thread, at any time.
  void abort() noexcept;

 private:
  Segment segment_;
  int32_t rank_;
  Patience patience_;
  Arena* arena_ = nullptr;
  std::unique_ptr<int32_t[]> regions_;  // of each rank
  uint64_t next_chunk_ = 0;
  std::atomic<uint64_t> copied_bytes_{0};
  hvd_status failure_ = HVD_OK;
  std::atomic<uint32_t> aborted_{0};
};

hvd_status allreduce(Plane& plane, const hvd_span* spans, uint64_t n, const hvd_reduction& reduction) noexcept;
hvd_status allgather(Plane& plane, const hvd_span* spans, const uint64_t* counts) noexcept;
hvd_status reducescatter(Plane& plane, const hvd_span* spans, const uint64_t* counts, const hvd_reduction& reduction,
                         uint8_t* partials) noexcept;
hvd_status alltoall(Plane& plane, const hvd_span* sends, const uint64_t* send_counts, const hvd_span* receives,
                    const uint64_t* receive_counts, const uint64_t* matrix) noexcept;
hvd_status barrier(Plane& plane) noexcept;

}  // namespace hvd::shm
