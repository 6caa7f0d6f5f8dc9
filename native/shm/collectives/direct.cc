#include "shm/collectives/direct.h"

#include <algorithm>

#include "kernels/reduce.h"

namespace hvd::shm {
namespace {

// After so many bytes of the vector a rank shows the others that it moves.
constexpr uint64_t kStretchBytes = 64 << 20;

}  // namespace

int32_t count_direct(Plane& plane, uint64_t chunk) noexcept {
  int32_t count = 0;
  for (int32_t rank = 0; rank < plane.size(); ++rank) count += plane.segment().is_direct(rank, chunk) != 0;
  return count;
}

bool DirectAllReduce::is_possible() const noexcept {
  if (!plane_.has_arena() || n_ > plane_.segment().geometry().chunk_bytes / sizeof(Place)) return false;
  const uint64_t begin = reinterpret_cast<uint64_t>(plane_.region(plane_.rank()));
  return std::all_of(spans_, spans_ + n_, [=](const hvd_span& span) {
    return span.bytes == 0 || plane_.arena().is_within({span.in - begin, span.out - begin}, span.bytes);
  });
}

Place* DirectAllReduce::table(int32_t rank) noexcept {
  return reinterpret_cast<Place*>(plane_.segment().inputs(rank, first_));
}

hvd_status DirectAllReduce::offer(uint64_t chunk) noexcept {
  first_ = chunk;
  if (hvd_status status = plane_.wait_for_slot(chunk)) return status;
  const uint64_t begin = reinterpret_cast<uint64_t>(plane_.region(plane_.rank()));
  Place* own = table(plane_.rank());
  for (uint64_t i = 0; i < n_; ++i) own[i] = {spans_[i].in - begin, spans_[i].out - begin};
  plane_.segment().is_direct(plane_.rank(), chunk) = 1;
  plane_.pass(kFilled, chunk);
  return plane_.wait_for_all(kFilled, chunk);
}

// A stretch has a share for each rank. That of the last is what is left, so shares of others are whole cache lines.
hvd_status DirectAllReduce::run(uint64_t first, const Chunking& chunking, uint64_t total) noexcept {
  const uint64_t step = std::max<uint64_t>(1, kStretchBytes / chunking.bytes), last = first + chunking.count - 1;
  const uint64_t rank = static_cast<uint64_t>(plane_.rank()), size = static_cast<uint64_t>(plane_.size());
  Walk walk;
  for (uint64_t begin = 0, chunk = first + step - 1; begin < total; begin += step * chunking.bytes, chunk += step) {
    const uint64_t bytes = std::min(step * chunking.bytes, total - begin);
    const uint64_t share = round_up((bytes + size - 1) / size, kCacheLine);
    const uint64_t own_begin = std::min(share * rank, bytes), own_end = std::min(own_begin + share, bytes);
    if (hvd_status status = reduce(skip(walk, own_begin), own_end - own_begin)) return status;
    walk = skip(walk, bytes);
    plane_.pass(kReduced, std::min(chunk, last));
  }
  // One after the other, so that a peer that is slow but moves is not given up.
  for (uint64_t chunk = first + step - 1; chunk < last; chunk += step) {
    if (hvd_status status = plane_.wait_for_all(kReduced, chunk)) return status;
  }
  if (hvd_status status = plane_.wait_for_all(kReduced, last)) return status;
  plane_.pass(kFinished, last);
  // Memory may have become private meanwhile, of this rank too: another group may have failed.
  return plane_.are_all_shared() ? HVD_OK : HVD_ABORTED;
}

DirectAllReduce::Walk DirectAllReduce::skip(Walk walk, uint64_t bytes) const noexcept {
  walk.skipped += bytes;
  while (walk.row < n_ && walk.skipped >= spans_[walk.row].bytes) walk.skipped -= spans_[walk.row++].bytes;
  return walk;
}

hvd_status DirectAllReduce::reduce(Walk walk, uint64_t bytes) noexcept {
  while (bytes > 0) {
    const uint64_t piece = std::min({bytes, spans_[walk.row].bytes - walk.skipped, kStretchBytes / 64});
    if (hvd_status status = reduce_row(walk, piece)) return status;
    walk = skip(walk, piece);
    bytes -= piece;
  }
  return HVD_OK;
}

hvd_status DirectAllReduce::reduce_row(const Walk& at, uint64_t bytes) noexcept {
  if (hvd_status status = plane_.status()) return status;  // aborted
  const int32_t size = plane_.size();
  const uint64_t item = item_bytes(reduction_.dtype);
  const void* ins[kMaxRanks];
  uint8_t* outs[kMaxRanks];
  for (int32_t rank = 0; rank < size; ++rank) {
    const Place place = table(rank)[at.row];  // a copy: what a peer changes after the check is not used
    if (!plane_.arena().is_within(place, spans_[at.row].bytes) || (place.in | place.out) % item != 0)
      return HVD_INVALID;
    ins[rank] = plane_.region(rank) + place.in + at.skipped;
    outs[rank] = plane_.region(rank) + place.out + at.skipped;
  }
  reduce_to_all(outs, ins, plane_.rank(), size, bytes, reduction_);
  return HVD_OK;
}

}  // namespace hvd::shm
