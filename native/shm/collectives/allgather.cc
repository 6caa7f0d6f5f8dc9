// All-gather, and broadcast, its case of one contributor: the stream of a rank is what the rank contributes.

#include "shm/collectives/streams.h"

namespace hvd::shm {

hvd_status allgather(Plane& plane, const hvd_span* spans, const uint64_t* counts) noexcept {
  Streams streams(plane);
  for (int32_t rank = 0; rank < plane.size(); spans += counts[rank++]) {
    const Cell whole = {SpanCursor(spans), 0, total_bytes(spans, counts[rank])}, nothing = {SpanCursor(spans), 0, 0};
    const bool is_own = rank == plane.rank();
    const bool is_in_place = std::all_of(spans, spans + counts[rank], [](auto& span) { return span.in == span.out; });
    streams.outgoing[rank] = is_own ? whole : nothing;
    streams.incoming[rank] = is_own && is_in_place ? nothing : whole;
    streams.longest_bytes = std::max(streams.longest_bytes, whole.bytes);
    if (is_own) streams.own_bytes = whole.bytes;
  }
  return streams.run();
}

}  // namespace hvd::shm
