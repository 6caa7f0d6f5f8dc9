// All-to-all, and gather, scatter and a message between two ranks, its cases with empty cells.
//
// A cell is what goes from one rank to another. The stream of rank r holds its cells for r + 1, r + 2, ..., r - 1, in
// this order, so that with even cells each rank reads from one peer at a time and no two read from the same: the order
// of a pairwise exchange. Every rank has the matrix of all cells, so it knows where its own cells begin in every
// stream. What a rank sends to itself it copies last, when its peers have all of theirs.

#include "shm/collectives/streams.h"

namespace hvd::shm {
namespace {

// Where the cell for `receiver` begins in the stream of `sender`; for the sender itself, where the stream ends.
uint64_t begin_in_stream(int32_t sender, int32_t receiver, const uint64_t* matrix, int32_t size) noexcept {
  uint64_t begin = 0;
  for (int32_t rank = (sender + 1) % size; rank != receiver; rank = (rank + 1) % size) {
    begin += matrix[static_cast<int64_t>(sender) * size + rank];
  }
  return begin;
}

}  // namespace

hvd_status alltoall(Plane& plane, const hvd_span* sends, const uint64_t* send_counts, const hvd_span* receives,
                    const uint64_t* receive_counts, const uint64_t* matrix) noexcept {
  const int32_t own = plane.rank(), size = plane.size();
  const auto bytes = [=](int32_t from, int32_t to) { return matrix[static_cast<int64_t>(from) * size + to]; };
  Streams streams(plane);
  SpanCursor own_sends(sends), own_receives(receives);
  for (int32_t rank = 0; rank < size; ++rank) {
    const bool is_own = rank == own;
    if (is_own) own_sends = SpanCursor(sends), own_receives = SpanCursor(receives);
    streams.outgoing[rank] = {SpanCursor(sends), begin_in_stream(own, rank, matrix, size),
                              is_own ? 0 : bytes(own, rank)};
    streams.incoming[rank] = {SpanCursor(receives), begin_in_stream(rank, own, matrix, size),
                              is_own ? 0 : bytes(rank, own)};
    streams.longest_bytes = std::max(streams.longest_bytes, begin_in_stream(rank, rank, matrix, size));
    sends += send_counts[rank];
    receives += receive_counts[rank];
  }
  streams.own_bytes = begin_in_stream(own, own, matrix, size);
  if (hvd_status status = streams.run()) return status;
  own_sends.visit(0, bytes(own, own), [&](const uint8_t* in, uint8_t*, uint64_t n, uint64_t position) {
    own_receives.visit(position, position + n, [&](const uint8_t*, uint8_t* out, uint64_t piece, uint64_t copied) {
      plane.copy(out, in + (copied - position), piece);
    });
  });
  return HVD_OK;
}

}  // namespace hvd::shm
