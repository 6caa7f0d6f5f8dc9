// Moves the bytes of the tensors that all ranks of a host carry (agreement.h), through two slots of each rank.
//
// A tensor longer than a slot moves in *parts*, which have numbers that go on from one tensor to the next, and use the
// slots in turns. Its first part is put before the tensor is submitted, so all parts of that number are there once the
// tensor is decided. A rank puts each further part after it has read the one before, and counts it in its line. So a
// rank that has found part n of all ranks knows that all have read part n - 1, and may put part n + 1 where that was.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hvdlite.h"
#include "kernels/spin.h"
#include "page/page.h"

namespace hvd::page {

// A tensor as this rank carries it: `bytes` of its own at `in`, and what `recipe` makes of those of all ranks.
struct Carried {
  const void* in;
  uint64_t bytes;
  void* out;
  const hvd_recipe* recipe;
};

// One rank's part. Calls must not overlap.
class Carrier {
 public:
  // May throw std::bad_alloc.
  Carrier(Page& page, int32_t rank) : page_(page), own_(rank), inputs_(static_cast<size_t>(page.geometry().size)) {}

  // True if the page can carry the tensor: it has no bytes, or there are slots.
  bool can_carry(const Carried& tensor) const noexcept;

  // Puts the first part of a tensor, to be submitted next. It may be submitted in vain, or not at all.
  void put_first(const Carried& tensor) noexcept { put(tensor, 0); }

  // Reads a tensor that is decided, and puts its further parts. HVD_BUSY if parts of other ranks had not come by
  // `until_ns` on the monotonic clock; then call it again. HVD_INVALID if the recipe has an invalid piece, or a peer
  // has damaged the page.
  hvd_status move(const Carried& tensor, hvd_spin* spin, int64_t until_ns) noexcept;

  // Parts that have been read.
  uint64_t number() const noexcept { return number_; }

 private:
  friend struct Digest;  // of tests

  hvd_status await(hvd_spin* spin, int64_t until_ns) noexcept;
  hvd_status look() noexcept;
  void put(const Carried& tensor, uint64_t part) noexcept;
  void tell() noexcept;
  hvd_status read(const Carried& tensor) noexcept;

  Page& page_;
  const int32_t own_;
  uint64_t number_ = 0;  // of the part to be read next
  uint64_t part_ = 0;    // the same within its tensor
  std::vector<const void*> inputs_;
};

}  // namespace hvd::page
