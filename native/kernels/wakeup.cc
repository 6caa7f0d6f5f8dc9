// Measures the latency of waking a thread that sleeps on another core.
//
// One thread sleeps on a futex and another wakes it, each on a core of its own, since a waker on the sleeper's core
// would only measure a switch. Before each wake the waker computes for a while, so that the sleeper's core is idle as
// it is when a rank waits for a peer: on a virtual machine the expensive part is to get an idle core back from the
// host.

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>

#include "hvdlite.h"
#include "kernels/spin.h"

namespace hvd {
namespace {

constexpr int kRounds = 16;
constexpr int64_t kIdleNs = 50'000;
constexpr int64_t kMostNs = 2'000'000;  // nobody should spin for longer, so nothing longer is measured

// A number that one thread raises and another sleeps for.
class Turn {
 public:
  void pass() noexcept {
    word_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

  // False if it has not reached `count` after `limit_ns`.
  bool wait(uint32_t count, int64_t limit_ns) noexcept {
    const int64_t until_ns = monotonic_ns() + limit_ns;
    for (uint32_t seen; (seen = word_.load(std::memory_order_seq_cst)) < count;) {
      const int64_t rest_ns = until_ns - monotonic_ns();
      if (rest_ns <= 0) return false;
      const timespec rest = {static_cast<time_t>(rest_ns / 1'000'000'000), static_cast<long>(rest_ns % 1'000'000'000)};
      syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, &rest, nullptr, 0);
    }
    return true;
  }

 private:
  std::atomic<uint32_t> word_{0};
};

void stay_on(int cpu) noexcept {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  sched_setaffinity(0, sizeof only, &only);  // of this thread; where it is refused, the figure is only less exact
}

// Two cores that this thread may use; false if there is only one.
bool two_cores(std::array<int, 2>* cores) noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  size_t found = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && found < cores->size(); ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) (*cores)[found++] = cpu;
  }
  return found == cores->size();
}

int64_t measure(const std::array<int, 2>& cores) {
  Turn wakes, answers;
  std::array<int64_t, kRounds> woken_ns{}, late_ns{};
  std::thread sleeper([&] {
    stay_on(cores[1]);
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (!wakes.wait(round + 1, 1'000'000'000)) break;
      woken_ns[round] = monotonic_ns();
      answers.pass();
    }
  });
  std::thread waker;
  try {
    waker = std::thread([&] {
      stay_on(cores[0]);
      for (uint32_t round = 0; round < kRounds; ++round) {
        const int64_t until_ns = monotonic_ns() + kIdleNs;
        while (monotonic_ns() < until_ns) {
        }
        const int64_t sent_ns = monotonic_ns();
        wakes.pass();
        // Acquire, through the word that the sleeper raised last: what it wrote before can be read.
        late_ns[round] = answers.wait(round + 1, kMostNs) ? std::min(woken_ns[round] - sent_ns, kMostNs) : kMostNs;
      }
    });
  } catch (const std::system_error&) {
    for (int round = 0; round < kRounds; ++round) wakes.pass();  // nobody else lets the sleeper end
  }
  if (waker.joinable()) waker.join();
  sleeper.join();
  std::sort(late_ns.begin(), late_ns.end());
  return late_ns[kRounds * 3 / 4];
}

}  // namespace
}  // namespace hvd

// The upper quartile: most waits should end before the spinning does, and a single hiccup should not count.
int64_t hvd_wakeup_ns(void) {
  std::array<int, 2> cores;
  if (!hvd::two_cores(&cores)) return 0;
  try {
    return hvd::measure(cores);
  } catch (const std::system_error&) {  // no thread can be started
    return 0;
  }
}
