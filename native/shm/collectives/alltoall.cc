// All-to-all (and gather, scatter and a message between two ranks, its cases with empty cells): every rank streams what
// it sends through its own slots, and each receiver copies its cells of these streams out.
//
// A cell is what goes from one rank to another. The stream of rank r holds its cells for r + 1, r + 2, ..., r - 1, in
// this order, so that with even cells each rank reads from one peer at a time and no two read from the same: the order
// of a pairwise exchange. Every rank has the matrix of all cells, and so knows where its own begin in every stream.
//
// As in allgather.cc, in step t a rank copies chunk t of its own stream in and then what chunk t - 1 of the other
// streams holds for it out, and chunk numbers go on to the end of the longest stream. A rank waits for nobody in chunks
// in which it has nothing to send or to receive. What it sends to itself it copies last, when its peers have all of
// theirs.
//
// Cost per rank: what it sends is read once and written to the slots once; what it gets is read from the slots, which
// stay in the cache, and written once. One wait per sender and chunk.

#include <algorithm>

#include "shm/collectives/chunking.h"
#include "shm/collectives/span_cursor.h"
#include "shm/plane.h"

namespace hvd::shm {
namespace {

// Bytes from one rank to another.
struct Cell {
  SpanCursor cursor;
  uint64_t begin;  // position in the sender's stream
  uint64_t bytes;

  // Calls visit(in, out, bytes, position in the stream) for each contiguous piece of what the cell has of [from, to).
  template <class Visit>
  void visit(uint64_t from, uint64_t to, Visit&& visit) noexcept {
    from = std::max(from, begin);
    to = std::min(to, begin + bytes);
    if (from >= to) return;
    cursor.visit(from - begin, to - begin, [&](const uint8_t* in, uint8_t* out, uint64_t n, uint64_t position) {
      visit(in, out, n, begin + position);
    });
  }
  bool has_any_of(uint64_t from, uint64_t to) const noexcept {
    return std::max(from, begin) < std::min(to, begin + bytes);
  }
};

class AllToAll {
 public:
  AllToAll(Plane& plane, const uint64_t* matrix) noexcept : plane_(plane), matrix_(matrix) {}

  void place_cells(const hvd_span* sends, const uint64_t* send_counts, const hvd_span* receives,
                   const uint64_t* receive_counts) noexcept;
  hvd_status run() noexcept;

 private:
  hvd_status fill(const Chunking& chunking, uint64_t index, uint64_t number) noexcept;
  hvd_status drain(const Chunking& chunking, uint64_t index, uint64_t number) noexcept;
  void copy_own() noexcept;

  // The rank `distance` places to the right.
  int32_t right_of(int32_t rank, int32_t distance) const noexcept { return (rank + distance) % plane_.size(); }
  uint64_t bytes(int32_t sender, int32_t receiver) const noexcept {
    return matrix_[static_cast<int64_t>(sender) * plane_.size() + receiver];
  }
  uint64_t begin_in_stream(int32_t sender, int32_t receiver) const noexcept;
  uint64_t stream_bytes(int32_t sender) const noexcept { return begin_in_stream(sender, sender); }

  Plane& plane_;
  const uint64_t* matrix_;
  Cell outgoing_[kMaxRanks];  // by receiver
  Cell incoming_[kMaxRanks];  // by sender
};

// A rank's cell for itself would follow all others.
uint64_t AllToAll::begin_in_stream(int32_t sender, int32_t receiver) const noexcept {
  uint64_t begin = 0;
  for (int32_t rank = right_of(sender, 1); rank != receiver; rank = right_of(rank, 1)) begin += bytes(sender, rank);
  return begin;
}

void AllToAll::place_cells(const hvd_span* sends, const uint64_t* send_counts, const hvd_span* receives,
                           const uint64_t* receive_counts) noexcept {
  const int32_t own = plane_.rank();
  for (int32_t rank = 0; rank < plane_.size(); ++rank) {
    outgoing_[rank] = {SpanCursor(sends), begin_in_stream(own, rank), bytes(own, rank)};
    incoming_[rank] = {SpanCursor(receives), begin_in_stream(rank, own), bytes(rank, own)};
    sends += send_counts[rank];
    receives += receive_counts[rank];
  }
}

hvd_status AllToAll::run() noexcept {
  uint64_t longest = 0;
  for (int32_t rank = 0; rank < plane_.size(); ++rank) longest = std::max(longest, stream_bytes(rank));
  const Chunking chunking(longest, plane_.segment().geometry().chunk_bytes);
  const uint64_t first = plane_.take_chunks(chunking.count);
  for (uint64_t step = 0; step <= chunking.count; ++step) {
    hvd_status status = HVD_OK;
    if (step < chunking.count && (status = fill(chunking, step, first + step))) return status;
    if (step > 0 && (status = drain(chunking, step - 1, first + step - 1))) return status;
  }
  copy_own();
  return HVD_OK;
}

hvd_status AllToAll::fill(const Chunking& chunking, uint64_t index, uint64_t number) noexcept {
  const uint64_t begin = index * chunking.bytes;
  if (begin >= stream_bytes(plane_.rank())) return HVD_OK;
  if (hvd_status status = plane_.wait_for_slot(number)) return status;
  uint8_t* slot = plane_.segment().inputs(plane_.rank(), number);
  const auto copy_in = [=](const uint8_t* in, uint8_t*, uint64_t n, uint64_t position) {
    plane_.copy(slot + (position - begin), in, n);
  };
  for (int32_t distance = 1; distance < plane_.size(); ++distance) {
    outgoing_[right_of(plane_.rank(), distance)].visit(begin, begin + chunking.bytes, copy_in);
  }
  plane_.pass(kFilled, number);
  return HVD_OK;
}

hvd_status AllToAll::drain(const Chunking& chunking, uint64_t index, uint64_t number) noexcept {
  const uint64_t begin = index * chunking.bytes, end = begin + chunking.bytes;
  for (int32_t distance = 1; distance < plane_.size(); ++distance) {
    const int32_t sender = right_of(plane_.rank(), distance);
    if (!incoming_[sender].has_any_of(begin, end)) continue;
    if (hvd_status status = plane_.wait(sender, kFilled, number)) return status;
    const uint8_t* slot = plane_.segment().inputs(sender, number);
    incoming_[sender].visit(begin, end, [=](const uint8_t*, uint8_t* out, uint64_t n, uint64_t position) {
      plane_.copy(out, slot + (position - begin), n);
    });
  }
  plane_.pass(kFinished, number);
  return HVD_OK;
}

void AllToAll::copy_own() noexcept {
  Cell &from = outgoing_[plane_.rank()], &to = incoming_[plane_.rank()];
  from.cursor.visit(0, from.bytes, [&](const uint8_t* in, uint8_t*, uint64_t n, uint64_t position) {
    to.cursor.visit(position, position + n, [=](const uint8_t*, uint8_t* out, uint64_t bytes, uint64_t copied) {
      plane_.copy(out, in + (copied - position), bytes);
    });
  });
}

}  // namespace

hvd_status alltoall(Plane& plane, const hvd_span* sends, const uint64_t* send_counts, const hvd_span* receives,
                    const uint64_t* receive_counts, const uint64_t* matrix) noexcept {
  AllToAll run(plane, matrix);
  run.place_cells(sends, send_counts, receives, receive_counts);
  return run.run();
}

}  // namespace hvd::shm
