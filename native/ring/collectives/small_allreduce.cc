// All-reduce of a small batch: every rank's raw part travels the ring once, and every rank folds all of them itself.
//
// Every rank passes on what comes, except the right neighbour's own part, which comes last. So a rank waits size - 1
// times for a frame, where the algorithm of allreduce.cc waits 2 (size - 1) times, and each link carries size - 1 parts
// instead of less than two. All ranks fold the same bytes in the order of ranks, so they hold the same bits.

#include <cstring>
#include <vector>

#include "kernels/reduce.h"
#include "ring/ring.h"

namespace hvd::ring {

bool Ring::allreduce_small(const SpanList& spans, const hvd_reduction& reduction) {
  const uint64_t bytes = spans.bytes();
  Message own, parts;
  if (!load_in(spans, 0, bytes, &own) || !link.allocate(bytes * static_cast<uint64_t>(size), &parts)) return false;
  std::vector<const void*> part(size);
  const auto keep = [&](int32_t origin, const Message& payload) {
    part[origin] = std::memcpy(parts.data() + bytes * static_cast<uint64_t>(origin), payload.data(), bytes);
  };
  keep(rank, own);
  if (!link.send(&own, link.checksum(own))) return false;
  for (int32_t distance = 1; distance < size; ++distance) {
    Message payload;
    uint32_t crc;
    if (!link.receive(bytes, &payload, &crc)) return false;
    keep((rank + size - distance) % size, payload);
    if (distance < size - 1 && !link.send(&payload, crc)) return false;
  }
  reduce(parts.data(), part.data(), size, bytes / item_bytes(reduction.dtype), reduction);
  spans.scatter_out(0, bytes, parts.data());
  return link.finish();
}

}  // namespace hvd::ring
