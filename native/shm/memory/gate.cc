#include "shm/memory/gate.h"

namespace hvd::shm {
namespace {

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // yields longer than `yield` does on most cores
#endif
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
  futex_wake_all(&bell_);
}

hvd_status Gate::wait(uint64_t count, Patience* patience, const std::atomic<uint32_t>& aborted) noexcept {
  // Relaxed: the flag carries no data, and a late look costs one chunk.
  if (aborted.load(std::memory_order_relaxed) != 0) return HVD_ABORTED;
  if (has_reached(count)) return HVD_OK;
  const int64_t start_ns = monotonic_ns();
  const auto look = [&] {
    pause();
    return has_reached(count) || aborted.load(std::memory_order_relaxed) != 0;
  };
  const bool is_over = spin_until(&patience->spin, look) && has_reached(count);
  return is_over ? HVD_OK : sleep(count, start_ns + patience->timeout_ns, aborted);
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
