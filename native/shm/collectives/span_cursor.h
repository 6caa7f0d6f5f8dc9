// Walks the virtual concatenation of spans, so that algorithms think in positions of one long vector.

#ifndef HVDLITE_SHM_SPAN_CURSOR_H_
#define HVDLITE_SHM_SPAN_CURSOR_H_

#include <algorithm>
#include <cstdint>

#include "hvdlite.h"

namespace hvd::shm {

inline uint64_t total_bytes(const hvd_span* spans, uint64_t n) noexcept {
  uint64_t total = 0;
  for (uint64_t i = 0; i < n; ++i) total += spans[i].bytes;
  return total;
}

// One walk, forward only: the whole of it costs as much as there are spans.
class SpanCursor {
 public:
  SpanCursor() noexcept = default;
  explicit SpanCursor(const hvd_span* spans) noexcept : span_(spans) {}

  // Calls visit(in, out, bytes, position) for each contiguous piece of positions [begin, end). No call may begin before
  // the end of the one before it, nor end beyond the spans.
  template <class Visit>
  void visit(uint64_t begin, uint64_t end, Visit&& visit) noexcept {
    while (begin < end) {
      while (span_begin_ + span_->bytes <= begin) span_begin_ += (span_++)->bytes;
      const uint64_t offset = begin - span_begin_;
      const uint64_t bytes = std::min(end - begin, span_->bytes - offset);
      visit(reinterpret_cast<const uint8_t*>(span_->in + offset), reinterpret_cast<uint8_t*>(span_->out + offset),
            bytes, begin);
      begin += bytes;
    }
  }

 private:
  const hvd_span* span_ = nullptr;
  uint64_t span_begin_ = 0;  // position of the first byte of *span_
};

}  // namespace hvd::shm

#endif  // HVDLITE_SHM_SPAN_CURSOR_H_
