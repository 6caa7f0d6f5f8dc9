// A word of the page that the ranks of a host share. Every access to the page goes through this class, so that a test
// can replace it by one that schedules each access (tests/explore/word.h).
//
// There are two sorts of words. A *flag* orders other accesses: it is written by `store` or `replace` and read by
// `load`, so what its writer did before is visible to its reader. *Data* (`set`, `get`) is ordered by some flag. Data
// is atomic all the same, because a peer is not trusted to keep to the order.

#pragma once

#ifdef HVD_EXPLORE
#include "tests/explore/word.h"
#else

#include <atomic>
#include <cstdint>

#include "kernels/spin.h"

namespace hvd::page {

// From so many bytes on a tensor may be shared (carrier.h).
constexpr uint64_t kLeastShared = 32 << 10;

template <class T>
class Word {
 public:
  T load() const noexcept { return value_.load(std::memory_order_acquire); }
  void store(T value) noexcept { value_.store(value, std::memory_order_release); }
  // If the word is `*expected`, replaces it; else sets `*expected` to what it is.
  bool replace(T* expected, T value) noexcept {
    return value_.compare_exchange_strong(*expected, value, std::memory_order_acq_rel, std::memory_order_acquire);
  }

  T get() const noexcept { return value_.load(std::memory_order_relaxed); }
  void set(T value) noexcept { value_.store(value, std::memory_order_relaxed); }

  // For a flag on which a thread sleeps.
  void increment() noexcept { value_.fetch_add(1, std::memory_order_release); }
  void wake() noexcept { futex_wake_all(&value_); }
  // Sleeps while the word is `seen`, until woken, interrupted, or `until_ns` on the monotonic clock.
  void sleep(T seen, int64_t until_ns) noexcept { futex_wait(&value_, seen, until_ns); }

 private:
  static_assert(std::atomic<T>::is_always_lock_free && sizeof(std::atomic<T>) == sizeof(T));
  std::atomic<T> value_;
};

// If two threads write different words, pass a fence, and read the word of the other, at least one sees the other's.
inline void fence() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }

}  // namespace hvd::page

#endif
