// Moves the bytes of the tensors that all ranks of a host carry (agreement.h), through three slots of each rank.
//
// The tensors of a call lie one behind the other, each at the beginning of a cache line. What is longer than a slot
// moves in *parts*, which have numbers that go on from one call to the next, and use the slots in turns. The first part
// is put before the tensors are submitted, so all parts of that number are there once they are decided. A rank that
// finds part n of all ranks puts part n + 1 and counts it in its line, so that others need not wait for it, and then
// reads part n. A rank that has counted part n has read part n - 2, so another one that finds it may put part n + 1
// where that was.
//
// A long tensor of which every rank gets everything may be *shared*: it and its result lie in memory that all ranks
// have mapped (shm/memory/arena.h). Its first part begins with where it is. If all ranks share it, it is divided among
// them, and each reduces its share from the memory of all into the memory of all. It counts a part when it has done so,
// and the result is there once all have. If only some share it, all put everything into slots, from the next part on.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hvdlite.h"
#include "kernels/spin.h"
#include "page/page.h"
#include "shm/memory/arena.h"

namespace hvd::page {

// The tensors of a call, as this rank carries them. They have the same order on all ranks.
struct Carried {
  const hvd_carried* tensors;
  int32_t count;
};

// One rank's part. Calls must not overlap.
class Carrier {
 public:
  // May throw std::bad_alloc.
  Carrier(Page& page, int32_t rank)
      : page_(page), own_(rank), inputs_(static_cast<size_t>(page.geometry().size)), outputs_(inputs_.size()) {}

  // Has it share tensors in the memory of the ranks, whose regions in `arena` are `regions`. May throw std::bad_alloc.
  // HVD_INVALID for a region that there is not, or another own one.
  hvd_status use(shm::Arena* arena, const int32_t* regions);

  // True if other ranks may be about to write to a tensor of this rank. Any thread.
  bool is_sharing() const noexcept { return is_sharing_; }

  // True if the page can carry them: they have no bytes, or there are slots.
  bool can_carry(const Carried& carried) const noexcept;

  // Puts the first part of tensors, to be submitted next. They may be submitted in vain, or not at all.
  void put_first(const Carried& carried) noexcept;

  // Reads tensors that are decided, and puts their further parts. HVD_BUSY if parts of other ranks had not come by
  // `until_ns` on the monotonic clock, or if it takes longer; then call it again. HVD_INVALID if the recipe has an
  // invalid piece, or a peer has damaged the page. HVD_ABORTED if some memory that is shared became private
  // meanwhile, each time.
  hvd_status move(const Carried& carried, hvd_spin* spin, int64_t until_ns) noexcept;

  // Parts that have been read.
  uint64_t number() const noexcept { return number_; }

 private:
  friend struct Digest;  // of tests

  // The beginning of the first part of a tensor that may be shared.
  struct Header {
    uint64_t is_shared;
    shm::Place place;
  };

  enum class Stage { kFirst, kParts, kPartsOfAll, kReducing, kReduced };

  Header& header(int32_t rank) noexcept { return *reinterpret_cast<Header*>(page_.slot(rank, number_)); }
  hvd_status choose(const Carried& carried) noexcept;
  hvd_status reduce_share(const hvd_carried& tensor, int64_t until_ns) noexcept;
  hvd_status await(hvd_spin* spin, int64_t until_ns) noexcept;
  hvd_status look() noexcept;
  void put(const Carried& carried, uint64_t part) noexcept;
  void count(uint64_t part) noexcept;
  hvd_status read(const Carried& carried) noexcept;
  hvd_status read(const hvd_carried& tensor, int64_t begin) noexcept;

  Page& page_;
  const int32_t own_;
  uint64_t number_ = 0;  // of the part to be read next
  uint64_t part_ = 0;    // the same within its call
  Stage stage_ = Stage::kFirst;
  std::atomic<bool> is_sharing_{false};
  uint64_t reduced_ = 0;  // bytes of the own share
  shm::Arena* arena_ = nullptr;
  std::vector<int32_t> regions_;  // of each rank
  std::vector<const void*> inputs_;
  std::vector<uint8_t*> outputs_;
};

}  // namespace hvd::page
