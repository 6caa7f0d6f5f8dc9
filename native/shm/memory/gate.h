// A counter in shared memory that one rank advances and every rank can wait for.
//
// A waiter spins for a while and then sleeps in the kernel (futex). The owner pays for a system call only if somebody
// sleeps: a waiter announces itself in `sleepers_` *before* it looks at the counter for the last time, the owner looks
// at `sleepers_` *after* it advanced. All four accesses are sequentially consistent, so at least one of the two sees
// the other (Dekker). What a waiter sleeps on is not the counter but `bell_`, which anybody may ring at any time
// without changing what the counter means: that is how an abort reaches sleepers of every process without a race.
//
// A peer's memory is not trusted: a wrong counter can make data wrong or a wait time out, but nothing is ever indexed
// by it.

#pragma once

#include <atomic>
#include <cstdint>

#include "hvdlite.h"
#include "kernels/spin.h"

namespace hvd::shm {

// Zero bytes are a valid gate: nothing passed, nobody asleep. Each gate has a pair of cache lines of its own, since
// processors fetch lines in pairs.
class alignas(128) Gate {
 public:
  // Makes everything written so far visible to threads that wait for `count`. Only the owner calls it; counts never
  // fall.
  void advance(uint64_t count) noexcept;

  // HVD_OK once the count is reached, HVD_ABORTED once `aborted` is set, or HVD_TIMED_OUT.
  hvd_status wait(uint64_t count, Patience* patience, const std::atomic<uint32_t>& aborted) noexcept;

  // Makes every sleeper look again.
  void ring() noexcept;

 private:
  // Acquire: pairs with the store in `advance`, so that what the owner wrote before is visible after.
  bool has_reached(uint64_t count) const noexcept { return count_.load(std::memory_order_acquire) >= count; }
  hvd_status sleep(uint64_t count, int64_t until_ns, const std::atomic<uint32_t>& aborted) noexcept;

  std::atomic<uint64_t> count_;
  std::atomic<uint32_t> sleepers_;
  std::atomic<uint32_t> bell_;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "processes can share only lock-free atomics");

}  // namespace hvd::shm
