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
//
// A tensor in other memory is shared by way of *staging* memory, which all ranks have mapped: a rank copies there what
// others reduce, and from there what others have reduced. It reduces its own share where the tensor is. That takes less
// time than slots where cores read quickly what others have just written, and more where they do not. A machine may
// change from one to the other. So rank 0 chooses, by the times of both, and the others do what it did the last time.
// A tensor of more than kMostParts parts is always staged.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hvdlite.h"
#include "kernels/spin.h"
#include "page/choice.h"
#include "page/page.h"
#include "shm/memory/arena.h"

namespace hvd::page {

constexpr int32_t kStagings = 2;
constexpr uint64_t kMostParts = 6;
constexpr uint64_t kStagingSlack = 4096;

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

  // Has it share tensors that lie elsewhere by way of `staging`, which has kStagingSlack bytes more, in this rank's
  // region, for good. An `index` is for tensors of the same sizes each time. After `use`; any thread, also during a
  // call. HVD_INVALID if it is not there.
  hvd_status stage(int32_t index, uint8_t* staging, uint64_t more_than, uint64_t bytes) noexcept;

  // True if other ranks may be about to write to memory of this rank. Any thread.
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
  // Between which rank 0 has chosen, if it has.
  enum class Way : uint64_t { kNone, kStaged, kParts };

  // The beginning of the first part of a tensor that may be shared.
  struct Header {
    uint64_t is_shared;
    shm::Place place;
    Way way;
  };

  // The bytes of a tensor that one rank reduces.
  struct Share {
    uint64_t begin, end;
  };

  struct Staging {
    std::atomic<uint64_t> more_than{0}, bytes{0};
    std::atomic<uint8_t*> address{nullptr};  // written last
  };

  enum class Stage { kFirst, kParts, kPartsOfAll, kReducing, kReduced };

  bool share(const hvd_carried& tensor, Header* own) noexcept;
  Choice& choice_for(uint64_t bytes) noexcept { return choices_[63 - __builtin_clzll(bytes)]; }
  void finish(const Carried& carried) noexcept;
  Share own_share(const hvd_carried& tensor) const noexcept;
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
  uint64_t reduced_ = 0;       // bytes of the own share
  uint8_t* staged_ = nullptr;  // where the tensor that is shared is staged, if it is
  Staging stagings_[kStagings];
  Choice choices_[64];        // whether to stage a tensor; by the binary logarithm of its bytes
  Choice* chosen_ = nullptr;  // on rank 0, if the call is to tell it how long it took
  int64_t put_ns_ = 0, began_ns_ = 0;
  shm::Arena* arena_ = nullptr;
  std::vector<int32_t> regions_;  // of each rank
  std::vector<const void*> inputs_;
  std::vector<uint8_t*> outputs_;
};

}  // namespace hvd::page
