// Measures the latency of waking a thread that sleeps on another core.
//
// One thread sleeps at a gate and another wakes it, each on a core of its own, since a waker on the sleeper's core
// would only measure a switch. Before each wake the waker computes for a while, so that the sleeper's core is idle as
// it is when a rank waits for a peer: on a virtual machine the expensive part is to get an idle core back from the
// host.

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>

#include "hvdlite.h"
#include "shm/memory/gate.h"

namespace hvd::shm {
namespace {

constexpr int kRounds = 16;
constexpr int64_t kIdleNs = 50'000;
constexpr int64_t kGiveUpNs = 1'000'000'000;
constexpr int64_t kMostNs = 2'000'000;  // nobody should spin for longer, so nothing longer is measured

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
  Gate wakes{}, answers{};
  const std::atomic<uint32_t> aborted{0};  // never
  std::array<int64_t, kRounds> woken_ns{}, late_ns{};
  std::thread sleeper([&] {
    Patience patience(0, kGiveUpNs);
    stay_on(cores[1]);
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (wakes.wait(round + 1, &patience, aborted) != HVD_OK) break;
      woken_ns[round] = monotonic_ns();
      answers.advance(round + 1);
    }
  });
  std::thread waker;
  try {
    waker = std::thread([&] {
      Patience patience(0, kMostNs);
      stay_on(cores[0]);
      for (uint32_t round = 0; round < kRounds; ++round) {
        const int64_t until_ns = monotonic_ns() + kIdleNs;
        while (monotonic_ns() < until_ns) {
        }
        const int64_t sent_ns = monotonic_ns();
        wakes.advance(round + 1);
        const bool is_answered = answers.wait(round + 1, &patience, aborted) == HVD_OK;
        late_ns[round] = is_answered ? std::min(woken_ns[round] - sent_ns, kMostNs) : kMostNs;
      }
    });
  } catch (const std::system_error&) {
    wakes.advance(kRounds);  // nobody else lets the sleeper end
  }
  if (waker.joinable()) waker.join();
  sleeper.join();
  std::sort(late_ns.begin(), late_ns.end());
  return late_ns[kRounds * 3 / 4];
}

}  // namespace
}  // namespace hvd::shm

// The upper quartile: most waits should end before the spinning does, and a single hiccup should not count.
int64_t hvd_wakeup_ns(void) {
  std::array<int, 2> cores;
  if (!hvd::shm::two_cores(&cores)) return 0;
  try {
    return hvd::shm::measure(cores);
  } catch (const std::system_error&) {  // no thread can be started
    return 0;
  }
}
