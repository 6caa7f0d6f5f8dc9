// The collectives of a rank that talks to two neighbours only; one file for each algorithm.

#pragma once

#include <algorithm>
#include <cstdint>

#include "hvdlite.h"
#include "ring/link/link.h"
#include "ring/span_list.h"

namespace hvd::ring {

// Below this size a frame's fixed cost outweighs what a deeper pipeline gains.
constexpr uint64_t kMinFrameBytes = 64 << 10;

// Payloads up to this size are copied: cheaper than waiting until the neighbour has acknowledged borrowed memory.
constexpr uint64_t kCopyBytes = 32 << 10;

// Batches up to this size are folded by every rank: even 1 Gbit/s carries them in about the time of one step.
constexpr uint64_t kSmallBytes = 8 << 10;

constexpr uint64_t divide_up(uint64_t a, uint64_t b) noexcept { return a / b + (a % b != 0); }

struct Ring {
  int32_t rank;
  int32_t size;
  uint64_t chunk_bytes;  // most bytes of one payload
  uint64_t window;       // frames ahead of the neighbour
  Link link;

  // Each returns once its part is done and all memory is the caller's again. False: link.status() is the reason.
  bool allreduce(const SpanList& spans, const hvd_reduction& reduction);
  bool allreduce_small(const SpanList& spans, const hvd_reduction& reduction);
  bool allgather(const SpanList& streams, const uint64_t* counts);
  bool reducescatter(const SpanList& parts, const uint64_t* counts, const hvd_reduction& reduction);
  bool alltoall(const hvd_span* sends, const uint64_t* send_counts, const SpanList& receives,
                const uint64_t* receive_counts, const uint64_t* matrix);
  bool barrier();

  // How many bytes each frame of a stream has: few enough to keep the pipe full, and no fewer than pay.
  uint64_t frame_bytes(uint64_t stream_bytes) const noexcept {
    return std::min(chunk_bytes, std::max(kMinFrameBytes, stream_bytes / window));
  }

  // Makes a payload of bytes [begin, begin + bytes) as they are now at the reading (writing) addresses.
  bool load_in(const SpanList& spans, uint64_t begin, uint64_t bytes, Message* payload);
  bool load_out(const SpanList& spans, uint64_t begin, uint64_t bytes, Message* payload);

  // Where to receive what belongs at the writing addresses of these bytes; null: into a message, and then
  // `scatter_out`.
  char* place_of(const SpanList& spans, uint64_t begin, uint64_t bytes) const noexcept;
};

}  // namespace hvd::ring
