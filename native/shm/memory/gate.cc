#include "shm/memory/gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace hvd::shm {
namespace {

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // yields longer than `yield` does on most cores
#endif
}

// The kernel takes the address of the plain word inside the atomic; the two have one representation.
uint32_t* word_of(std::atomic<uint32_t>* atomic) noexcept {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(atomic);
}

// Sleeps while `*bell` is `seen`, until woken, interrupted, or `until_ns` on the monotonic clock.
void futex_wait(std::atomic<uint32_t>* bell, uint32_t seen, int64_t until_ns) noexcept {
  const timespec until = {static_cast<time_t>(until_ns / 1'000'000'000), static_cast<long>(until_ns % 1'000'000'000)};
  syscall(SYS_futex, word_of(bell), FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void Gate::advance(uint64_t count) noexcept {
  // Sequentially consistent, both: the count is visible to all before sleepers_ is read (see the top of gate.h). The
  // store is also the release that publishes the data.
  count_.store(count, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) ring();
}

void Gate::ring() noexcept {
  // Sequentially consistent: a waiter that reads the new bell also sees whatever it was rung for, and one that read the
  // old bell is refused by the kernel or woken below.
  bell_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, word_of(&bell_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

hvd_status Gate::wait(uint64_t count, Patience* patience, const std::atomic<uint32_t>& aborted) noexcept {
  // Relaxed: the flag carries no data, and a late look costs one chunk.
  if (aborted.load(std::memory_order_relaxed) != 0) return HVD_ABORTED;
  if (has_reached(count)) return HVD_OK;
  const int64_t start_ns = monotonic_ns();
  const int64_t limit_ns = spin_ns(patience->spin);
  const bool is_spin_enough = limit_ns > 0 && spin(count, start_ns + limit_ns, aborted);
  note_wait(&patience->spin, is_spin_enough);
  return is_spin_enough ? HVD_OK : sleep(count, start_ns + patience->timeout_ns, aborted);
}

bool Gate::spin(uint64_t count, int64_t until_ns, const std::atomic<uint32_t>& aborted) const noexcept {
  do {
    for (int i = 0; i < 16; ++i) {
      pause();
      if (has_reached(count)) return true;
    }
    if (aborted.load(std::memory_order_relaxed) != 0) return false;
  } while (monotonic_ns() < until_ns);
  return false;
}

hvd_status Gate::sleep(uint64_t count, int64_t until_ns, const std::atomic<uint32_t>& aborted) noexcept {
  // Sequentially consistent: announced before the last looks at the bell, the flag and the count.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  hvd_status status;
  for (;;) {
    const uint32_t seen = bell_.load(std::memory_order_seq_cst);
    if (aborted.load(std::memory_order_seq_cst) != 0) {
      status = HVD_ABORTED;
    } else if (count_.load(std::memory_order_seq_cst) >= count) {
      status = HVD_OK;
    } else if (monotonic_ns() >= until_ns) {
      status = HVD_TIMED_OUT;
    } else {
      futex_wait(&bell_, seen, until_ns);
      continue;
    }
    break;
  }
  // Relaxed: a sleeper that is counted too long costs its owner one wasted wake-up.
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return status;
}

}  // namespace hvd::shm
