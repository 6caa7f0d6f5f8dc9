// Reduce-scatter (and reduce to one root, its case of one part that is not empty): the first half of allreduce.cc, for
// parts of any lengths.
//
// All parts are cut into the same number of slices, each part in proportion to its length. Row k is slice k of all
// parts, one after the other, and normally a chunk is a row, so that all ranks have their share of work in each.
//
//   fill     copy from own memory into the own slot the slices that others reduce     -> pass kFilled
//   reduce   fold the own slice from the peers' slots and own memory, in rank order,
//            straight into own memory                                                -> pass kFinished
//
// In step t a rank fills chunk t and reduces chunk t - 1. Slices are whole cache lines, so that no element is cut. When
// a slot is too short to have such a slice for every rank, a row takes several chunks.
//
// Cost per rank for B bytes on n ranks: it reads own memory once, writes its part once, and moves B (n - 1) / n bytes
// in and as many out through the slots, which stay in the cache; one wait a chunk. Elements are folded by the same
// kernel in the same order as in an all-reduce, so the bits are the same.

#include <algorithm>

#include "kernels/reduce.h"
#include "shm/collectives/chunking.h"
#include "shm/collectives/span_cursor.h"
#include "shm/plane.h"

namespace hvd::shm {
namespace {

class ReduceScatter {
 public:
  ReduceScatter(Plane& plane, const hvd_reduction& reduction, uint8_t* partials) noexcept
      : plane_(plane), reduction_(reduction), partials_(partials) {}

  // Cuts the parts. False if there is nothing to do.
  bool plan(const hvd_span* spans, const uint64_t* counts) noexcept;
  hvd_status run() noexcept;

 private:
  struct Part {
    SpanCursor cursor;
    uint64_t total;
    uint64_t slice;   // bytes of each slice but the last
    uint64_t offset;  // of a slice in its row
  };
  // The piece of one part in one chunk: positions [begin, end) of the part, from `offset` on in the slot.
  struct Piece {
    uint64_t begin;
    uint64_t end;
    uint64_t offset;
  };

  Piece piece(const Part& part, uint64_t index) const noexcept;
  hvd_status fill(uint64_t index, uint64_t number) noexcept;
  hvd_status reduce(uint64_t index, uint64_t number) noexcept;

  Plane& plane_;
  const hvd_reduction& reduction_;
  uint8_t* const partials_;  // where the own part goes unrounded; null: to its spans
  uint64_t rows_ = 0;
  uint64_t chunks_per_row_ = 0;
  Part parts_[kMaxRanks];
};

bool ReduceScatter::plan(const hvd_span* spans, const uint64_t* counts) noexcept {
  uint64_t total = 0;
  for (int32_t rank = 0; rank < plane_.size(); ++rank) {
    parts_[rank] = {SpanCursor(spans), total_bytes(spans, counts[rank]), 0, 0};
    total += parts_[rank].total;
    spans += counts[rank];
  }
  if (total == 0) return false;
  // Rounding makes a slice longer than its proportion, but by less than a cache line.
  const uint64_t slot = plane_.segment().geometry().chunk_bytes, rounding = kCacheLine * plane_.size();
  rows_ = Chunking(total, std::max(slot, 2 * rounding) - rounding).count;
  uint64_t row_bytes = 0;
  for (int32_t rank = 0; rank < plane_.size(); ++rank) {
    Part& part = parts_[rank];
    part.slice = round_up((part.total + rows_ - 1) / rows_, kCacheLine);
    part.offset = row_bytes;
    row_bytes += part.slice;
  }
  chunks_per_row_ = (row_bytes + slot - 1) / slot;
  return true;
}

ReduceScatter::Piece ReduceScatter::piece(const Part& part, uint64_t index) const noexcept {
  // In positions of the row, the chunk is [chunk, chunk + slot) and the slice is [part.offset, part.offset +
  // part.slice).
  const uint64_t slot = plane_.segment().geometry().chunk_bytes;
  const uint64_t row = index / chunks_per_row_, chunk = index % chunks_per_row_ * slot;
  const uint64_t from = std::max(chunk, part.offset), to = std::min(chunk + slot, part.offset + part.slice);
  if (from >= to) return {0, 0, 0};
  const uint64_t begin = row * part.slice + (from - part.offset);
  return {begin, std::min(begin + (to - from), part.total), from - chunk};
}

hvd_status ReduceScatter::run() noexcept {
  const uint64_t count = rows_ * chunks_per_row_;
  const uint64_t first = plane_.take_chunks(count);
  for (uint64_t step = 0; step <= count; ++step) {
    hvd_status status = HVD_OK;
    if (step < count && (status = fill(step, first + step))) return status;
    if (step > 0 && (status = reduce(step - 1, first + step - 1))) return status;
  }
  return HVD_OK;
}

hvd_status ReduceScatter::fill(uint64_t index, uint64_t number) noexcept {
  if (hvd_status status = plane_.wait_for_slot(number)) return status;
  uint8_t* slot = plane_.segment().inputs(plane_.rank(), number);
  for (int32_t rank = 0; rank < plane_.size(); ++rank) {
    if (rank == plane_.rank()) continue;
    const Piece theirs = piece(parts_[rank], index);
    const auto copy_in = [=](const uint8_t* in, uint8_t*, uint64_t bytes, uint64_t position) {
      plane_.copy(slot + theirs.offset + (position - theirs.begin), in, bytes);
    };
    parts_[rank].cursor.visit(theirs.begin, theirs.end, copy_in);
  }
  plane_.pass(kFilled, number);
  return HVD_OK;
}

hvd_status ReduceScatter::reduce(uint64_t index, uint64_t number) noexcept {
  Part& part = parts_[plane_.rank()];
  const Piece own = piece(part, index);
  if (own.begin < own.end) {
    if (hvd_status status = plane_.wait_for_all(kFilled, number)) return status;
  }
  const uint64_t element = item_bytes(reduction_.dtype);
  part.cursor.visit(own.begin, own.end, [&](const uint8_t* in, uint8_t* out, uint64_t bytes, uint64_t position) {
    const void* sources[kMaxRanks];
    for (int32_t rank = 0; rank < plane_.size(); ++rank) {
      sources[rank] = plane_.segment().inputs(rank, number) + own.offset + (position - own.begin);
    }
    sources[plane_.rank()] = in;
    if (partials_ == nullptr) {
      hvd::reduce(out, sources, plane_.size(), bytes / element, reduction_);
    } else {
      uint8_t* target = partials_ + position / element * hvd::partial_bytes(reduction_);
      hvd::reduce_to_partials(target, sources, plane_.size(), bytes / element, reduction_);
    }
  });
  plane_.pass(kFinished, number);
  return HVD_OK;
}

}  // namespace

hvd_status reducescatter(Plane& plane, const hvd_span* spans, const uint64_t* counts, const hvd_reduction& reduction,
                         uint8_t* partials) noexcept {
  ReduceScatter run(plane, reduction, partials);
  return run.plan(spans, counts) ? run.run() : HVD_OK;
}

}  // namespace hvd::shm
