// All-gather (and broadcast, its case of one contributor): every rank streams what it contributes through its own
// slots, and all others copy it out.
//
// In step t a rank copies chunk t of its own stream in, which its peers may read at once, and then copies chunk t - 1
// of every peer's stream out. Streams may differ in length; a chunk number covers the same positions of all of them, so
// a rank whose stream has ended goes on reading, and one that only sends may be as far ahead as it has slots.
//
// Cost per rank: its contribution is read once and written to the slots once; the others' are read from the slots,
// which stay in the cache, and written once. One wait per peer and chunk.

#include <algorithm>

#include "shm/collectives/chunking.h"
#include "shm/collectives/span_cursor.h"
#include "shm/plane.h"

namespace hvd::shm {
namespace {

class AllGather {
 public:
  AllGather(Plane& plane, const hvd_span* spans, const uint64_t* counts) noexcept;
  hvd_status run() noexcept;

 private:
  struct Stream {
    SpanCursor cursor;
    uint64_t total;
  };

  hvd_status fill(const Chunking& chunking, uint64_t index, uint64_t number) noexcept;
  hvd_status drain(const Chunking& chunking, uint64_t index, uint64_t number) noexcept;

  Plane& plane_;
  uint64_t longest_ = 0;
  Stream streams_[kMaxRanks];
};

AllGather::AllGather(Plane& plane, const hvd_span* spans, const uint64_t* counts) noexcept : plane_(plane) {
  for (int32_t rank = 0; rank < plane.size(); ++rank) {
    streams_[rank] = {SpanCursor(spans), total_bytes(spans, counts[rank])};
    longest_ = std::max(longest_, streams_[rank].total);
    spans += counts[rank];
  }
}

hvd_status AllGather::run() noexcept {
  const Chunking chunking(longest_, plane_.segment().geometry().chunk_bytes);
  const uint64_t first = plane_.take_chunks(chunking.count);
  for (uint64_t step = 0; step <= chunking.count; ++step) {
    hvd_status status = HVD_OK;
    if (step < chunking.count && (status = fill(chunking, step, first + step))) return status;
    if (step > 0 && (status = drain(chunking, step - 1, first + step - 1))) return status;
  }
  return HVD_OK;
}

hvd_status AllGather::fill(const Chunking& chunking, uint64_t index, uint64_t number) noexcept {
  Stream& own = streams_[plane_.rank()];
  const uint64_t begin = index * chunking.bytes;
  if (begin >= own.total) return HVD_OK;
  if (hvd_status status = plane_.wait_for_slot(number)) return status;
  uint8_t* slot = plane_.segment().inputs(plane_.rank(), number);
  const auto copy_in = [=](const uint8_t* in, uint8_t* out, uint64_t bytes, uint64_t position) {
    plane_.copy(slot + (position - begin), in, bytes);
    if (out != in) plane_.copy(out, in, bytes);
  };
  own.cursor.visit(begin, std::min(begin + chunking.bytes, own.total), copy_in);
  plane_.pass(kFilled, number);
  return HVD_OK;
}

hvd_status AllGather::drain(const Chunking& chunking, uint64_t index, uint64_t number) noexcept {
  const uint64_t begin = index * chunking.bytes;
  for (int32_t distance = 1; distance < plane_.size(); ++distance) {
    const int32_t peer = (plane_.rank() + distance) % plane_.size();
    Stream& stream = streams_[peer];
    if (begin >= stream.total) continue;
    if (hvd_status status = plane_.wait(peer, kFilled, number)) return status;
    const uint8_t* slot = plane_.segment().inputs(peer, number);
    const auto copy_out = [=](const uint8_t*, uint8_t* out, uint64_t bytes, uint64_t position) {
      plane_.copy(out, slot + (position - begin), bytes);
    };
    stream.cursor.visit(begin, std::min(begin + chunking.bytes, stream.total), copy_out);
  }
  plane_.pass(kFinished, number);
  return HVD_OK;
}

}  // namespace

hvd_status allgather(Plane& plane, const hvd_span* spans, const uint64_t* counts) noexcept {
  return AllGather(plane, spans, counts).run();
}

}  // namespace hvd::shm
