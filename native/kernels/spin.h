// How a thread waits for another one: it spins for a while and then sleeps. Spinning pays off if the wait is short, and
// takes a core from others, perhaps the peer, if it is not. So it is tried less often while it does not help: after a
// few waits in a row that spinning did not end, only one wait in many spins, until spinning ends one again. A
// `hvd_spin` is used by one thread at a time.

#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>

#include "hvdlite.h"

namespace hvd {

int64_t monotonic_ns() noexcept;

// The time for which the next wait may spin; 0: not at all.
inline int64_t spin_ns(const hvd_spin& spin) noexcept {
  constexpr uint32_t kInARow = 3, kOneIn = 16;
  const bool is_worth_it = spin.vain < kInARow || spin.vain % kOneIn == 0;
  return is_worth_it && spin.is_idle == 0 ? spin.most_ns : 0;
}

// To be called after each wait, with whether spinning ended it.
inline void note_wait(hvd_spin* spin, bool is_spin_enough) noexcept {
  spin->vain = is_spin_enough ? 0 : spin->vain + 1;
}

// Begins a wait: spins until `look` returns true, for as long as this wait may. True if that ended the wait.
template <class Look>
bool spin_until(hvd_spin* spin, Look look) noexcept {
  bool is_enough = false;
  if (const int64_t limit_ns = spin_ns(*spin); limit_ns > 0) {
    const int64_t until_ns = monotonic_ns() + limit_ns;
    do {
      for (int i = 0; i < 64 && !is_enough; ++i) is_enough = look();
    } while (!is_enough && monotonic_ns() < until_ns);
  }
  note_wait(spin, is_enough);  // also if it did not spin, or no wait would spin again
  return is_enough;
}

// As poll(), but it spins first. After a time-out no wait spins until one succeeds.
int poll_spinning(hvd_spin* spin, pollfd* fds, nfds_t count, int timeout_ms) noexcept;

// Sleeps while `*word` is `seen`, until woken, interrupted, or `until_ns` on the monotonic clock. The word may be in
// memory that several processes share.
void futex_wait(std::atomic<uint32_t>* word, uint32_t seen, int64_t until_ns) noexcept;
void futex_wake_all(std::atomic<uint32_t>* word) noexcept;

// How a rank waits: it spins, then sleeps, and gives up once nothing has moved for `timeout_ns`.
struct Patience {
  Patience(int64_t spin_ns, int64_t limit_ns) noexcept : spin{spin_ns, 0, 0}, timeout_ns(limit_ns) {}

  hvd_spin spin;
  int64_t timeout_ns;
};

}  // namespace hvd
