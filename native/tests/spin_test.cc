// How often a thread spins, by what its spins were good for.

#include "kernels/spin.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/check.h"

namespace {

constexpr int64_t kMost = 1000;

void test_spins_in_vain_become_rare_and_one_that_is_not_brings_them_back() {
  hvd_spin spin = {kMost, 0, 0, 0};
  int spun = 0;
  for (int wait = 0; wait < 3 + 16 * 10; ++wait) {
    CHECK(hvd::spin_ns(spin) == 0 || hvd::spin_ns(spin) == kMost);
    spun += hvd::spin_ns(spin) != 0;
    hvd::note_wait(&spin, false);
  }
  CHECK(spun == 3 + 10);
  while (hvd::spin_ns(spin) == 0) hvd::note_wait(&spin, false);
  hvd::note_wait(&spin, true);
  CHECK(hvd::spin_ns(spin) == kMost);
}

void test_waits_spin_again_after_some_in_vain() {
  hvd_spin spin = {kMost, 0, 0, 0};
  int spun = 0;
  for (int wait = 0; wait < 3 + 16 * 10; ++wait) {
    bool has_looked = false;
    CHECK(!hvd::spin_until(&spin, [&] { return has_looked = true, false; }));
    spun += has_looked;
  }
  CHECK(spun == 3 + 10);
  while (!hvd::spin_until(&spin, [] { return true; })) continue;
  CHECK(spin.vain == 0);
}

void test_who_yields_looks_at_least_once_and_sees_what_a_thread_on_the_same_core_does() {
  hvd_spin spin = {-1, 0, 0, 0};
  int looks = 0;
  CHECK(!hvd::spin_until(&spin, [&] { return ++looks, false; }));
  CHECK(looks == 1 && spin.vain == 1);

  cpu_set_t before, one;
  CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);  // of the thread that is started, too
  std::atomic<bool> has_come = false;
  std::thread peer([&] { has_come = true; });
  spin.most_ns = -int64_t{3600} * 1'000'000'000;
  CHECK(hvd::spin_until(&spin, [&] { return has_come.load(); }));
  CHECK(spin.vain == 0);
  peer.join();
  CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

void test_one_wait_of_few_that_a_spin_ends_keeps_it() {
  hvd_spin spin = {kMost, 0, 0, 0};
  for (int wait = 0; wait < 100; ++wait) {
    CHECK(hvd::spin_ns(spin) == kMost);
    hvd::note_wait(&spin, wait % 3 == 2);
  }
}

void test_after_a_short_sleep_waits_spin_for_longer_while_that_is_needed() {
  constexpr int64_t kLong = 200'000;
  hvd_spin spin = {kLong, 100, 0, 0};
  CHECK(hvd::spin_ns(spin) == 0);
  hvd::note_sleep(&spin, 2 * kLong);
  CHECK(hvd::spin_ns(spin) == 4 * kLong);
  for (int wait = 0; wait < 2; ++wait) {
    int64_t first_ns = 0;  // of the looks
    CHECK(hvd::spin_until(&spin, [&] {
      const int64_t now_ns = hvd::monotonic_ns();
      if (first_ns == 0) first_ns = now_ns;
      return now_ns - first_ns > kLong;
    }));
    CHECK(hvd::spin_ns(spin) == 4 * kLong);
  }
  while (hvd::spin_ns(spin) != kLong) CHECK(hvd::spin_until(&spin, [] { return true; }));

  spin.most_ns = kMost;
  for (int wait = 0; wait < 3; ++wait) {  // longer than such a spin
    hvd::note_sleep(&spin, 2 * kMost);
    const int64_t began_ns = hvd::monotonic_ns();
    CHECK(!hvd::spin_until(&spin, [] { return false; }));
    hvd::note_sleep(&spin, hvd::monotonic_ns() - began_ns);
    CHECK(spin.is_near == 0);
  }
  spin.most_ns = 2'000'000;  // longer is too long for a call
  hvd::note_sleep(&spin, 1'000'000);
  CHECK(hvd::spin_ns(spin) == 2'000'000);
  spin.vain = 0;
  spin.most_ns = -kMost;
  hvd::note_sleep(&spin, 1);
  CHECK(hvd::spin_ns(spin) == -kMost);
}

void test_who_has_waited_for_nothing_does_not_spin_again_before_something_comes() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  hvd_spin spin = {kMost, 0, 0, 0};
  CHECK(hvd_spin_poll(&spin, ends[0], -1, 1) == 0);
  CHECK(hvd::spin_ns(spin) == 0);
  CHECK(hvd_spin_poll(&spin, ends[0], -1, 1) == 0);
  CHECK(hvd::spin_ns(spin) == 0);
  CHECK(write(ends[1], "x", 1) == 1);
  CHECK(hvd_spin_poll(&spin, ends[0], ends[0], -1) == 3);
  CHECK(hvd::spin_ns(spin) == kMost);
  CHECK(hvd_spin_poll(&spin, -1, ends[0], -1) == 2);
  CHECK(spin.vain == 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

int main() {
  test_spins_in_vain_become_rare_and_one_that_is_not_brings_them_back();
  test_waits_spin_again_after_some_in_vain();
  test_who_yields_looks_at_least_once_and_sees_what_a_thread_on_the_same_core_does();
  test_one_wait_of_few_that_a_spin_ends_keeps_it();
  test_after_a_short_sleep_waits_spin_for_longer_while_that_is_needed();
  test_who_has_waited_for_nothing_does_not_spin_again_before_something_comes();
}
