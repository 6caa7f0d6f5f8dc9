// Spans: the memory of a batch as its caller describes it, as one sequence of bytes.

#pragma once

#include <algorithm>
#include <cstdint>

#include "hvdlite.h"

namespace hvd {

inline uint64_t total_bytes(const hvd_span* spans, uint64_t n) noexcept {
  uint64_t total = 0;
  for (uint64_t i = 0; i < n; ++i) total += spans[i].bytes;
  return total;
}

// The number of spans of the first `ranks` ranks.
inline uint64_t count_rows(const uint64_t* counts, int32_t ranks) noexcept {
  uint64_t rows = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) rows += counts[rank];
  return rows;
}

// Elements lie whole within a span and aligned to their size.
inline bool are_elements(const hvd_span* spans, uint64_t n, uint64_t item_bytes, bool is_written) noexcept {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits |= spans[i].in | (is_written ? spans[i].out : 0) | spans[i].bytes;
  return bits % item_bytes == 0;
}

// The same for the spans of each rank. Only the spans of rank `written` are written; -1: none are.
inline bool are_elements(const hvd_span* spans, const uint64_t* counts, int32_t size, uint64_t item_bytes,
                         int32_t written) noexcept {
  for (int32_t rank = 0; rank < size; spans += counts[rank++]) {
    if (!are_elements(spans, counts[rank], item_bytes, rank == written)) return false;
  }
  return true;
}

// The spans of each rank hold `bytes[rank * stride]` bytes.
inline bool have_bytes(const hvd_span* spans, const uint64_t* counts, const uint64_t* bytes, int32_t stride,
                       int32_t size) noexcept {
  for (int32_t rank = 0; rank < size; spans += counts[rank++], bytes += stride) {
    if (total_bytes(spans, counts[rank]) != *bytes) return false;
  }
  return true;
}

// Calls visit(in, out, bytes) for each contiguous piece of `bytes` bytes that begin `skip` bytes into `*span`.
template <class Visit>
void for_each_piece(const hvd_span* span, uint64_t skip, uint64_t bytes, Visit&& visit) {
  for (; bytes > 0; ++span, skip = 0) {
    const uint64_t piece = std::min(bytes, span->bytes - skip);
    if (piece == 0) continue;
    // Integers are added, not pointers: an address that nobody uses may be null.
    visit(reinterpret_cast<char*>(span->in + skip), reinterpret_cast<char*>(span->out + skip), piece);
    bytes -= piece;
  }
}

}  // namespace hvd
