#include "kernels/spin.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace hvd {
namespace {

// The kernel takes the address of the plain word inside the atomic; the two have one representation.
uint32_t* word_of(std::atomic<uint32_t>* atomic) noexcept {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(atomic);
}

int64_t read(clockid_t clock) noexcept {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen, int64_t until_ns) noexcept {
  const timespec until = {static_cast<time_t>(until_ns / 1'000'000'000), static_cast<long>(until_ns % 1'000'000'000)};
  syscall(SYS_futex, word_of(word), FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake_all(std::atomic<uint32_t>* word) noexcept {
  syscall(SYS_futex, word_of(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int64_t monotonic_ns() noexcept { return read(CLOCK_MONOTONIC); }

int64_t processor_ns() noexcept { return read(CLOCK_THREAD_CPUTIME_ID); }

int poll_spinning(hvd_spin* spin, pollfd* fds, nfds_t count, int timeout_ms) noexcept {
  int ready = 0;
  const auto look = [&] { return (ready = ::poll(fds, count, 0)) != 0; };
  const bool is_spin_enough = spin->is_idle == 0 && spin_until(spin, look, 1);
  if (!is_spin_enough) ready = ::poll(fds, count, timeout_ms);
  spin->is_idle = ready == 0;
  return ready;
}

}  // namespace hvd

int32_t hvd_spin_poll(hvd_spin* spin, int32_t first, int32_t second, int32_t timeout_ms) {
  pollfd fds[] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
  if (hvd::poll_spinning(spin, fds, 2, timeout_ms) < 0) return errno == EINTR ? 0 : -1;
  return (fds[0].revents != 0 ? 1 : 0) | (fds[1].revents != 0 ? 2 : 0);
}
