// The ring behind its C interface: arguments are checked here, once.

#include <errno.h>

#include <algorithm>
#include <memory>

#include "hvdlite.h"
#include "kernels/reduce.h"
#include "ring/ring.h"
#include "spans.h"

struct hvd_ring {
  hvd::ring::Crypto crypto;
  std::unique_ptr<hvd::ring::Ring> ring;
};

namespace {

using hvd::ring::SpanList;

constexpr uint64_t kMinChunkBytes = 4096;
constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;  // a frame's header counts in 32 bits
constexpr int32_t kMostConnections = hvd::ring::Link::kMostConnections;
constexpr uint64_t kMaxCellBytes = uint64_t{1} << 47;  // an address space; sums of cells cannot overflow

hvd_status outcome(hvd::ring::Link& link, bool done) noexcept {
  if (done) return HVD_OK;
  errno = link.error_number();
  return link.status();
}

}  // namespace

hvd_status hvd_ring_open(int32_t rank, int32_t size, uint64_t session, uint64_t chunk_bytes, int32_t window,
                         int32_t connections, int32_t has_checksums, const char* crypto, int64_t spin_ns,
                         int64_t progress_timeout_ns, hvd_ring** out) {
  const bool is_valid = size >= 2 && rank >= 0 && rank < size && chunk_bytes >= kMinChunkBytes &&
                        chunk_bytes <= kMaxChunkBytes && window >= 1 && connections >= 1 &&
                        connections <= kMostConnections && spin_ns >= 0 && progress_timeout_ns > 0 && out != nullptr;
  if (!is_valid) return HVD_INVALID;
  auto handle = std::make_unique<hvd_ring>();
  if (crypto != nullptr && !handle->crypto.load(crypto)) {
    errno = ELIBACC;
    return HVD_SYSTEM;
  }
  const uint64_t frames = static_cast<uint64_t>(window);
  const hvd::ring::Crypto* used = crypto != nullptr ? &handle->crypto : nullptr;
  const size_t count = static_cast<size_t>(connections);
  handle->ring.reset(
      new hvd::ring::Ring{rank,
                          size,
                          chunk_bytes,
                          frames,
                          {session, frames, has_checksums != 0, {spin_ns, progress_timeout_ns}, used, count}});
  const hvd_status status = outcome(handle->ring->link, handle->ring->link.status() == HVD_OK);
  if (status == HVD_OK) *out = handle.release();
  return status;
}

hvd_status hvd_ring_allreduce(hvd_ring* ring, const hvd_span* spans, uint64_t n, const hvd_reduction* reduction) {
  if (!hvd::is_valid(*reduction)) return HVD_INVALID;
  if (!hvd::are_elements(spans, n, hvd::item_bytes(reduction->dtype), true)) return HVD_INVALID;
  return outcome(ring->ring->link, ring->ring->allreduce(SpanList(spans, n), *reduction));
}

hvd_status hvd_ring_allgather(hvd_ring* ring, const hvd_span* spans, const uint64_t* counts) {
  const SpanList streams(spans, hvd::count_rows(counts, ring->ring->size));
  return outcome(ring->ring->link, ring->ring->allgather(streams, counts));
}

hvd_status hvd_ring_reducescatter(hvd_ring* ring, const hvd_span* spans, const uint64_t* counts,
                                  const hvd_reduction* reduction) {
  if (!hvd::is_valid(*reduction)) return HVD_INVALID;
  const int32_t rank = ring->ring->rank, size = ring->ring->size;
  if (!hvd::are_elements(spans, counts, size, hvd::item_bytes(reduction->dtype), rank)) return HVD_INVALID;
  const SpanList parts(spans, hvd::count_rows(counts, size));
  return outcome(ring->ring->link, ring->ring->reducescatter(parts, counts, *reduction));
}

hvd_status hvd_ring_alltoall(hvd_ring* ring, const hvd_span* sends, const uint64_t* send_counts,
                             const hvd_span* receives, const uint64_t* receive_counts, const uint64_t* matrix) {
  const int32_t rank = ring->ring->rank, size = ring->ring->size;
  const bool is_valid =
      std::all_of(matrix, matrix + size * size, [](uint64_t cell) { return cell <= kMaxCellBytes; }) &&
      hvd::have_bytes(sends, send_counts, matrix + rank * size, 1, size) &&
      hvd::have_bytes(receives, receive_counts, matrix + rank, size, size);
  if (!is_valid) return HVD_INVALID;
  const SpanList received(receives, hvd::count_rows(receive_counts, size));
  return outcome(ring->ring->link, ring->ring->alltoall(sends, send_counts, received, receive_counts, matrix));
}

hvd_status hvd_ring_barrier(hvd_ring* ring) { return outcome(ring->ring->link, ring->ring->barrier()); }

void hvd_ring_abort(hvd_ring* ring) { ring->ring->link.abort(); }

uint64_t hvd_ring_detach_left(hvd_ring* ring, int32_t connection) { return ring->ring->link.detach_left(connection); }

void hvd_ring_detach_right(hvd_ring* ring, int32_t connection) { ring->ring->link.detach_right(connection); }

hvd_status hvd_ring_attach_left(hvd_ring* ring, int32_t connection, int32_t fd, const hvd_ring_keys* keys) {
  return ring->ring->link.attach_left(connection, fd, keys) ? HVD_OK : HVD_SYSTEM;
}

hvd_status hvd_ring_attach_right(hvd_ring* ring, int32_t connection, int32_t fd, uint64_t received,
                                 const hvd_ring_keys* keys) {
  return ring->ring->link.attach_right(connection, fd, received, keys) ? HVD_OK : HVD_CORRUPT;
}

int32_t hvd_ring_flush(hvd_ring* ring, int32_t connection) { return ring->ring->link.flush(connection) ? 1 : 0; }

uint64_t hvd_ring_corrupt(hvd_ring* ring) { return ring->ring->link.corrupt(); }

void hvd_ring_close(hvd_ring* ring) { delete ring; }
