// All-reduce as a reduce-scatter followed by an all-gather, both through the slots, pipelined over chunks.
//
// Each chunk is split into one part per rank. A chunk passes three stages on every rank r:
//
//   fill     copy from own memory into the own slot the parts that others reduce          -> pass kFilled
//   reduce   fold part r from the peers' slots and own memory, in rank order, into the
//            result area of the own slot, and copy it to own memory                       -> pass kReduced
//   drain    copy the other parts from the peers' result areas into own memory            -> pass kFinished
//
// In step t a rank fills chunk t, reduces chunk t - lag and drains chunk t - 2 lag, so that it has work of its own to
// do between the moment it publishes a stage and the moment it needs the peers' answer. 2 lag + 1 slots are used at
// once.
//
// Cost per rank for B bytes on n ranks: it reads own memory once and writes it once, and moves 2 B (n - 1) / n bytes in
// and as many out through the slots, which stay in the cache; 2 waits a chunk. Results are folded in rank order and
// computed once, so they are identical on all ranks and do not depend on how the vector is cut.
//
// Short vectors take one round instead: everybody copies all of it in, waits once, and reduces all of it. It costs n
// times the arithmetic and half the synchronisation.
//
// Batches that all ranks have in the arena take neither way, see direct.h.
//
// The reduce-scatter/all-gather split is Rabenseifner's; see Thakur, Rabenseifner and Gropp, "Optimization of
// Collective Communication Operations in MPICH" (2005).

#include <algorithm>

#include "kernels/reduce.h"
#include "shm/collectives/chunking.h"
#include "shm/collectives/direct.h"
#include "shm/collectives/span_cursor.h"
#include "shm/plane.h"

namespace hvd::shm {
namespace {

// Up to here one round is faster: bytes that one rank folds, of all ranks together (docs/dataplanes.md).
constexpr uint64_t kOneRoundBytes = 128 << 10;

// The result of a block is copied to the caller's memory while it is still in the first-level cache.
constexpr uint64_t kBlockBytes = 16 << 10;

// Beside the statuses of the C interface: some ranks have all of the batch in the arena, and wait until they know that
// not all ranks do.
constexpr hvd_status kBeginAgain = -1;

struct Range {
  uint64_t begin;
  uint64_t end;
};

class AllReduce {
 public:
  AllReduce(Plane& plane, const hvd_span* spans, uint64_t total, const hvd_reduction& reduction) noexcept
      : plane_(plane),
        reduction_(reduction),
        item_bytes_(item_bytes(reduction.dtype)),
        total_(total),
        to_fill_(spans),
        to_reduce_(spans),
        to_drain_(spans) {}

  hvd_status run_one_round() noexcept;
  hvd_status run_pipeline(uint64_t first, const Chunking& chunking) noexcept;

 private:
  hvd_status fill(uint64_t index) noexcept;
  hvd_status reduce(uint64_t index) noexcept;
  hvd_status drain(uint64_t index) noexcept;

  Range chunk(uint64_t index) const noexcept {
    return {index * chunk_bytes_, std::min((index + 1) * chunk_bytes_, total_)};
  }
  // The part of a chunk that `rank` reduces. Only the last chunk is short, and then late ranks may have nothing to do.
  Range part(const Range& chunk, int32_t rank) const noexcept {
    const uint64_t share = plane_.segment().geometry().share_bytes(chunk.end - chunk.begin);
    const uint64_t begin = chunk.begin + share * static_cast<uint64_t>(rank);
    return {std::min(begin, chunk.end), std::min(begin + share, chunk.end)};
  }
  void copy_in(const Range& range, uint8_t* slot, uint64_t slot_begin) noexcept;

  Plane& plane_;
  const hvd_reduction& reduction_;
  const uint64_t item_bytes_;
  const uint64_t total_;
  uint64_t chunk_bytes_ = 0;
  uint64_t first_ = 0;  // number of the first chunk
  SpanCursor to_fill_, to_reduce_, to_drain_;
};

void AllReduce::copy_in(const Range& range, uint8_t* slot, uint64_t slot_begin) noexcept {
  to_fill_.visit(range.begin, range.end, [=](const uint8_t* in, uint8_t*, uint64_t bytes, uint64_t position) {
    plane_.copy(slot + (position - slot_begin), in, bytes);
  });
}

hvd_status AllReduce::fill(uint64_t index) noexcept {
  const uint64_t number = first_ + index;
  if (hvd_status status = plane_.wait_for_slot(number)) return status;
  const Range all = chunk(index), own = part(all, plane_.rank());
  if (index == 0) plane_.segment().is_direct(plane_.rank(), number) = 0;
  uint8_t* slot = plane_.segment().inputs(plane_.rank(), number);
  copy_in({all.begin, own.begin}, slot, all.begin);
  copy_in({own.end, all.end}, slot, all.begin);
  plane_.pass(kFilled, number);
  return HVD_OK;
}

hvd_status AllReduce::reduce(uint64_t index) noexcept {
  const uint64_t number = first_ + index;
  if (hvd_status status = plane_.wait_for_all(kFilled, number)) return status;
  if (index == 0 && count_direct(plane_, number) != 0) return kBeginAgain;
  const Range all = chunk(index), own = part(all, plane_.rank());
  const uint8_t* inputs[kMaxRanks];
  for (int32_t rank = 0; rank < plane_.size(); ++rank) inputs[rank] = plane_.segment().inputs(rank, number);
  uint8_t* results = plane_.segment().results(plane_.rank(), number);
  to_reduce_.visit(own.begin, own.end, [&](const uint8_t* in, uint8_t* out, uint64_t bytes, uint64_t position) {
    for (uint64_t done = 0; done < bytes; done += kBlockBytes) {
      const uint64_t n = std::min(kBlockBytes, bytes - done);
      const void* sources[kMaxRanks];
      for (int32_t rank = 0; rank < plane_.size(); ++rank) sources[rank] = inputs[rank] + (position + done - all.begin);
      sources[plane_.rank()] = in + done;
      uint8_t* result = results + (position + done - own.begin);
      hvd::reduce(result, sources, plane_.size(), n / item_bytes_, reduction_);
      plane_.copy(out + done, result, n);
    }
  });
  plane_.pass(kReduced, number);
  return HVD_OK;
}

hvd_status AllReduce::drain(uint64_t index) noexcept {
  const uint64_t number = first_ + index;
  const Range all = chunk(index);
  for (int32_t rank = 0; rank < plane_.size(); ++rank) {
    if (rank == plane_.rank()) continue;
    if (hvd_status status = plane_.wait(rank, kReduced, number)) return status;
    const Range theirs = part(all, rank);
    const uint8_t* results = plane_.segment().results(rank, number);
    to_drain_.visit(theirs.begin, theirs.end, [=](const uint8_t*, uint8_t* out, uint64_t bytes, uint64_t position) {
      plane_.copy(out, results + (position - theirs.begin), bytes);
    });
  }
  plane_.pass(kFinished, number);
  return HVD_OK;
}

hvd_status AllReduce::run_pipeline(uint64_t first, const Chunking& chunking) noexcept {
  const uint64_t lag = static_cast<uint64_t>(plane_.segment().geometry().slots - 1) / 2;
  chunk_bytes_ = chunking.bytes;
  first_ = first;
  const auto is_chunk = [&](uint64_t step, uint64_t behind) {
    return step >= behind && step - behind < chunking.count;
  };
  for (uint64_t step = 0; step < chunking.count + 2 * lag; ++step) {
    hvd_status status = HVD_OK;
    if (is_chunk(step, 0) && (status = fill(step))) return status;
    if (is_chunk(step, lag) && (status = reduce(step - lag))) return status;
    if (is_chunk(step, 2 * lag) && (status = drain(step - 2 * lag))) return status;
  }
  return HVD_OK;
}

hvd_status AllReduce::run_one_round() noexcept {
  const uint64_t number = plane_.take_chunks(1);
  if (hvd_status status = plane_.wait_for_slot(number)) return status;
  copy_in({0, total_}, plane_.segment().inputs(plane_.rank(), number), 0);
  plane_.pass(kFilled, number);
  if (hvd_status status = plane_.wait_for_all(kFilled, number)) return status;
  const void* sources[kMaxRanks];
  to_reduce_.visit(0, total_, [&](const uint8_t*, uint8_t* out, uint64_t bytes, uint64_t position) {
    for (int32_t rank = 0; rank < plane_.size(); ++rank) {
      sources[rank] = plane_.segment().inputs(rank, number) + position;
    }
    hvd::reduce(out, sources, plane_.size(), bytes / item_bytes_, reduction_);
  });
  plane_.pass(kFinished, number);
  return HVD_OK;
}

// Ranks that could go the direct way wait in it for the others until all know that these cannot.
hvd_status run_large(Plane& plane, const hvd_span* spans, uint64_t n, uint64_t total,
                     const hvd_reduction& reduction) noexcept {
  const Chunking chunking(total, plane.segment().geometry().chunk_bytes);
  const uint64_t first = plane.take_chunks(chunking.count);
  DirectAllReduce direct(plane, spans, n, reduction);
  hvd_status status = kBeginAgain;
  if (direct.is_possible()) {
    if (hvd_status failure = direct.offer(first)) return failure;
    if (count_direct(plane, first) == plane.size()) return direct.run(first, chunking, total);
  } else {
    status = AllReduce(plane, spans, total, reduction).run_pipeline(first, chunking);
  }
  if (status != kBeginAgain) return status;
  plane.pass(kFinished, first + chunking.count - 1);
  return AllReduce(plane, spans, total, reduction).run_pipeline(plane.take_chunks(chunking.count), chunking);
}

}  // namespace

hvd_status allreduce(Plane& plane, const hvd_span* spans, uint64_t n, const hvd_reduction& reduction) noexcept {
  const uint64_t total = total_bytes(spans, n);
  if (total == 0) return HVD_OK;
  const uint64_t limit = std::min(kOneRoundBytes / plane.size(), plane.segment().geometry().chunk_bytes);
  if (total > limit) return run_large(plane, spans, n, total, reduction);
  return AllReduce(plane, spans, total, reduction).run_one_round();
}

}  // namespace hvd::shm
