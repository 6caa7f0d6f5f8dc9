// A list of spans of which any part may be read at any time.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hvdlite.h"
#include "spans.h"

namespace hvd::ring {

class SpanList {
 public:
  SpanList(const hvd_span* spans, uint64_t n) : spans_(spans), begins_(n + 1) {
    for (uint64_t i = 0; i < n; ++i) begins_[i + 1] = begins_[i] + spans[i].bytes;
  }

  uint64_t bytes() const noexcept { return begins_.back(); }

  // Where row `i` begins in the sequence; `i` may be the number of rows.
  uint64_t begin_of(uint64_t i) const noexcept { return begins_[i]; }

  // Calls visit(in, out, bytes) for each contiguous piece of the sequence's bytes [begin, begin + bytes).
  template <class Visit>
  void for_each_piece(uint64_t begin, uint64_t bytes, Visit&& visit) const {
    if (bytes == 0) return;
    // The last row that begins at or before `begin`: of rows that begin together all but the last are empty.
    const uint64_t row = std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin() - 1;
    hvd::for_each_piece(spans_ + row, begin - begins_[row], bytes, visit);
  }

  void gather_in(uint64_t begin, uint64_t bytes, char* to) const {
    for_each_piece(begin, bytes, [&](const char* in, char*, uint64_t piece) {
      std::memcpy(to, in, piece);
      to += piece;
    });
  }

  void gather_out(uint64_t begin, uint64_t bytes, char* to) const {
    for_each_piece(begin, bytes, [&](char*, const char* out, uint64_t piece) {
      std::memcpy(to, out, piece);
      to += piece;
    });
  }

  void scatter_out(uint64_t begin, uint64_t bytes, const char* from) const {
    for_each_piece(begin, bytes, [&](char*, char* out, uint64_t piece) {
      std::memcpy(out, from, piece);
      from += piece;
    });
  }

 private:
  const hvd_span* spans_;
  std::vector<uint64_t> begins_;
};

}  // namespace hvd::ring
