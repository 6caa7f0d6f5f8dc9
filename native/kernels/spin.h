// How a thread waits for another one: it spins for a while and then sleeps. Spinning pays off if the wait is short, and
// takes a core from others, perhaps the peer, if it is not. So it is tried less often while it does not help: after a
// few waits in a row that spinning did not end, only one wait in many spins, until spinning ends one again. A
// `hvd_spin` is used by one thread at a time.
//
// Two ranks that wake each other late in turns would do so for ever: the one that is awake waits for a wake-up and what
// follows it, so a little longer than it spins, and then sleeps itself. So after a short sleep a wait may spin for
// several times as long, until that does not help, or is not needed, any more.
//
// Between looks it offers the core to others, for the system may have put the peer on the same core even if there is
// another one. A thread whose peers must share its core *yields* after each look. A yield takes a microsecond where
// sleeping and waking take tens. Its own processor time counts then, since others use the core meanwhile.

#pragma once

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "hvdlite.h"

namespace hvd {

int64_t monotonic_ns() noexcept;
int64_t processor_ns() noexcept;  // of this thread

// For how long a wait after a short sleep may spin.
inline int64_t near_ns(const hvd_spin& spin) noexcept {
  constexpr int64_t kMostNs = 1'000'000;  // calls are to end within a few milliseconds
  return std::max(spin.most_ns, std::min(4 * spin.most_ns, kMostNs));
}

// The time for which the next wait may spin; 0: not at all; negative: for which it may yield.
inline int64_t spin_ns(const hvd_spin& spin) noexcept {
  constexpr uint32_t kInARow = 3, kOneIn = 16;
  if (spin.is_near != 0) return near_ns(spin);
  const bool is_worth_it = spin.vain < kInARow || spin.vain % kOneIn == 0;
  return is_worth_it && spin.is_idle == 0 ? spin.most_ns : 0;
}

// To be called after each wait, with whether spinning ended it.
inline void note_wait(hvd_spin* spin, bool is_spin_enough) noexcept {
  spin->vain = is_spin_enough ? 0 : spin->vain + 1;
}

// To be called after a wait that slept, and succeeded `waited_ns` after it had begun. Who yields is never near: it need
// not be woken while its peers use the core.
inline void note_sleep(hvd_spin* spin, int64_t waited_ns) noexcept { spin->is_near = waited_ns < near_ns(*spin); }

// Begins a wait: spins or yields until `look` returns true, for as long as this wait may. True if that ended the wait.
// The time is read once in `looks`.
template <class Look>
bool spin_until(hvd_spin* spin, Look look, int looks = 64) noexcept {
  bool is_enough = false;
  const int64_t limit_ns = spin_ns(*spin);
  if (limit_ns > 0) {
    const int64_t until_ns = monotonic_ns() + limit_ns;
    do {
      for (int i = 0; i < looks && !is_enough; ++i) is_enough = look();
      if (!is_enough) ::sched_yield();
    } while (!is_enough && monotonic_ns() < until_ns);
    spin->is_near = spin->is_near != 0 && is_enough && until_ns - monotonic_ns() < limit_ns - spin->most_ns;
  } else if (limit_ns < 0) {
    const int64_t until_ns = processor_ns() - limit_ns;
    do {
      ::sched_yield();
      is_enough = look();
    } while (!is_enough && processor_ns() < until_ns);
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
  Patience(int64_t spin_ns, int64_t limit_ns) noexcept : spin{spin_ns, 0, 0, 0}, timeout_ns(limit_ns) {}

  hvd_spin spin;
  int64_t timeout_ns;
};

}  // namespace hvd
