// All-reduce of tensors in the arena: nothing is copied into slots.
//
// Each rank publishes where its spans are, as offsets in its region. If all ranks have their spans there, the vector is
// divided among them. Each rank folds its share from the memory of all, in rank order, block by block into its own
// output, and copies the block to the outputs of the others while it is in the cache.
//
// Cost per rank for B bytes on n ranks: it reads B and writes B, of which (n - 1) / n in the memory of others; 2 waits
// a batch. Every element is folded by the same kernel in the same order as through the slots, so bits are the same.
//
// Ranks agree without an extra round. A rank with its spans in the arena publishes a table of them in its slot of the
// batch's first chunk; any other rank fills that chunk as usual. Each marks which it did before it passes kFilled. So
// once all ranks have passed kFilled of that chunk, all know the same. Unless all have a table, they abandon the chunks
// of this attempt and start over through the slots.

#pragma once

#include <cstdint>

#include "hvdlite.h"
#include "shm/collectives/chunking.h"
#include "shm/plane.h"

namespace hvd::shm {

// How many ranks have a table in the slot of `chunk`, the first of a batch, once everybody has passed its kFilled.
int32_t count_direct(Plane& plane, uint64_t chunk) noexcept;

class DirectAllReduce {
 public:
  DirectAllReduce(Plane& plane, const hvd_span* spans, uint64_t n, const hvd_reduction& reduction) noexcept
      : plane_(plane), spans_(spans), n_(n), reduction_(reduction) {}

  // True if this rank can publish a table.
  bool is_possible() const noexcept;

  // Publishes it and waits until all others have passed the chunk.
  hvd_status offer(uint64_t chunk) noexcept;

  // Runs a batch for which all ranks have published a table. Ends when nobody is in this rank's memory any more.
  hvd_status run(uint64_t first, const Chunking& chunking, uint64_t total) noexcept;

 private:
  // A position of the vector: `skipped` bytes into a row.
  struct Walk {
    uint64_t row = 0;
    uint64_t skipped = 0;
  };

  Place* table(int32_t rank) noexcept;
  Walk skip(Walk walk, uint64_t bytes) const noexcept;
  hvd_status reduce(Walk walk, uint64_t bytes) noexcept;
  hvd_status reduce_row(const Walk& at, uint64_t bytes) noexcept;

  Plane& plane_;
  const hvd_span* spans_;
  const uint64_t n_;
  const hvd_reduction& reduction_;
  uint64_t first_ = 0;
};

}  // namespace hvd::shm
