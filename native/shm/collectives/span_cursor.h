// Walks over spans once, so that algorithms think in positions of one long vector.

#pragma once

#include <cstdint>

#include "hvdlite.h"
#include "spans.h"

namespace hvd::shm {

// Forward only: the whole walk costs as much as there are spans.
class SpanCursor {
 public:
  SpanCursor() noexcept = default;  // trivial, so that arrays for many ranks cost nothing
  explicit SpanCursor(const hvd_span* spans) noexcept : span_(spans), span_begin_(0) {}

  // Calls visit(in, out, bytes, position) for each contiguous piece of positions [begin, end). No call may begin before
  // the end of the one before it, nor end beyond the spans.
  template <class Visit>
  void visit(uint64_t begin, uint64_t end, Visit&& visit) noexcept {
    if (begin >= end) return;
    while (span_begin_ + span_->bytes <= begin) span_begin_ += (span_++)->bytes;
    for_each_piece(span_, begin - span_begin_, end - begin, [&](const char* in, char* out, uint64_t bytes) {
      visit(reinterpret_cast<const uint8_t*>(in), reinterpret_cast<uint8_t*>(out), bytes, begin);
      begin += bytes;
    });
  }

 private:
  const hvd_span* span_;
  uint64_t span_begin_;  // position of the first byte of *span_
};

}  // namespace hvd::shm
