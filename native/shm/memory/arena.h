// Memory that all ranks of a host have mapped, so that one may read and write the tensors of another.
//
// One sparse file has a region for each rank. A rank allocates in its own region only, and its peers see what it has
// there without a message. Every rank maps the whole file, each at an address of its own; ranks exchange offsets in
// regions.
//
// A rank stops sharing when something broke and a slow peer may still be about to write: it turns the mapping of its
// own region into a private one, in place. Addresses stay valid, threads that use the memory meanwhile notice nothing,
// and what peers write from then on reaches nobody. What peers read there from then on is no tensor any more. So it
// first sets a flag in the last line of its region, which is never allocated, and a peer looks at the flags of all once
// it has read.

#pragma once

#include <atomic>
#include <cstdint>

#include "hvdlite.h"

namespace hvd::shm {

// A tensor and its result, as offsets in the region of their rank.
struct Place {
  uint64_t in;
  uint64_t out;
};

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Maps `count` regions of `region_bytes` each, of which `own` is this rank's. HVD_SYSTEM if there is no room.
  hvd_status map(int fd, int32_t own, int32_t count, uint64_t region_bytes) noexcept;

  // For tests: uses memory of `count * region_bytes` that outlives this object.
  void adopt(void* memory, int32_t own, int32_t count, uint64_t region_bytes) noexcept;

  uint8_t* region(int32_t number) const noexcept { return base_ + number * region_bytes_; }
  uint8_t* own() const noexcept { return region(own_); }
  int32_t count() const noexcept { return count_; }
  uint64_t region_bytes() const noexcept { return region_bytes_; }

  // True if `regions` of `size` ranks are some of this arena, and that of rank `own` is this rank's.
  bool has(const int32_t* regions, int32_t own, int32_t size) const noexcept;

  // The place of addresses that this process has. It is far too large if they are below the own region.
  Place place_of(const void* in, const void* out) const noexcept {
    const uint64_t begin = reinterpret_cast<uint64_t>(own());
    return {reinterpret_cast<uint64_t>(in) - begin, reinterpret_cast<uint64_t>(out) - begin};
  }
  bool is_within(const Place& place, uint64_t bytes) const noexcept {
    return bytes <= region_bytes_ && place.in <= region_bytes_ - bytes && place.out <= region_bytes_ - bytes;
  }

  // To be called before this rank's region becomes private, but not in a forked child.
  void set_private() noexcept { flag(own_).store(1); }
  // True if region `number` is about to be private, or is. What this thread has read before was still shared if not.
  bool is_private(int32_t number) const noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return flag(number).load() != 0;
  }

  // True while this rank sees what peers write into its region. Goes from true to false once.
  bool is_shared() const noexcept { return is_shared_.load(std::memory_order_acquire); }
  void stop_sharing() noexcept { is_shared_.store(false, std::memory_order_release); }

  // As the functions of hvdlite.h.
  void use_huge_pages(int fd, uint64_t offset, uint64_t bytes) noexcept;
  hvd_status make_private(int fd, uint64_t offset, uint64_t bytes) noexcept;
  hvd_status after_fork(int fd) noexcept;
  hvd_status release(uint64_t offset, uint64_t bytes) noexcept;
  void leave_peers() noexcept;

 private:
  static constexpr uint64_t kFlagBytes = 64;

  std::atomic<uint32_t>& flag(int32_t number) const noexcept {
    return *reinterpret_cast<std::atomic<uint32_t>*>(region(number) + region_bytes_ - kFlagBytes);
  }
  hvd_status make_piece_private(int fd, uint8_t* begin, uint64_t bytes) noexcept;

  uint8_t* base_ = nullptr;
  uint64_t region_bytes_ = 0;
  int32_t own_ = 0;
  int32_t count_ = 0;
  bool is_mapped_ = false;  // the own region
  bool has_peers_ = false;  // the regions of the others are mapped, too
  std::atomic<bool> is_shared_{false};
};

}  // namespace hvd::shm

struct hvd_arena : hvd::shm::Arena {};
