// Waiting, aborting and opening of the shared-memory plane, with threads as ranks.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/shm_ranks.h"

namespace {

using namespace hvd::shm;

// The owner advances as fast as it can while the waiter sleeps for every single count: a lost wake-up is a time-out.
void test_no_wakeup_is_lost() {
  for (int64_t spin_ns : {0, 5'000}) {
    Ranks ranks({2, 4, 64}, {spin_ns, 10 * kSecond});
    ranks.run([](Plane& plane) {
      for (int turn = 0; turn < 3000; ++turn) CHECK(hvd::shm::barrier(plane) == HVD_OK);
    });
  }
}

void test_abort_ends_one_rank_and_stays() {
  Ranks ranks({3, 4, 1024}, {0, 60 * kSecond});
  std::atomic<int> ended{0};
  const auto wait_for_rank_2 = [&](int32_t rank) {
    CHECK(hvd::shm::barrier(ranks[rank]) == HVD_ABORTED);
    ++ended;
  };
  std::thread first(wait_for_rank_2, 0), second(wait_for_rank_2, 1);
  const auto began = std::chrono::steady_clock::now();
  ranks[0].abort();
  first.join();
  CHECK(ended == 1);
  ranks[1].abort();
  second.join();
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
  CHECK(ranks[0].status() == HVD_ABORTED && ranks[1].status() == HVD_ABORTED && ranks[2].status() == HVD_OK);
}

void test_waiting_ends_at_the_timeout() {
  Ranks ranks({2, 4, 1024}, {1'000, kSecond / 10});
  const auto began = std::chrono::steady_clock::now();
  CHECK(hvd::shm::barrier(ranks[0]) == HVD_TIMED_OUT);
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(100));
}

// Invalid arguments on rank 0 of 2. Each call returns at once, although rank 1 never answers.
void check_arguments(hvd_shm* shm) {
  float value = 1;
  const hvd_span uneven = span_of(&value, &value, 3), whole = span_of(&value, &value, 4);
  const hvd_span odd_target = {whole.in, whole.out + 1, 4};
  const hvd_reduction sum = {HVD_FLOAT32, HVD_SUM, 1.0, 1.0}, unknown = {HVD_FLOAT32, 2, 1.0, 1.0};
  const uint64_t to_0[] = {1, 0}, to_1[] = {0, 1};
  CHECK(hvd_shm_allreduce(shm, &uneven, 1, &sum) == HVD_INVALID);
  CHECK(hvd_shm_allreduce(shm, &whole, 1, &unknown) == HVD_INVALID);
  CHECK(hvd_shm_reducescatter(shm, &uneven, to_1, &sum, nullptr) == HVD_INVALID);
  CHECK(hvd_shm_reducescatter(shm, &odd_target, to_0, &sum, nullptr) == HVD_INVALID);
  CHECK(hvd_shm_reducescatter(shm, &whole, to_0, &unknown, nullptr) == HVD_INVALID);
  // Rank 0 sends 4 bytes to itself and to rank 1, which sends 3 bytes.
  const uint64_t matrix[] = {4, 4, 3, 0}, both[] = {1, 1};
  const hvd_span sends[] = {whole, whole}, receives[] = {whole, uneven};
  CHECK(hvd_shm_alltoall(shm, sends, to_0, receives, both, matrix) == HVD_INVALID);
  CHECK(hvd_shm_alltoall(shm, sends, both, receives, to_0, matrix) == HVD_INVALID);
  CHECK(hvd_shm_alltoall(shm, receives, both, receives, both, matrix) == HVD_INVALID);
  CHECK(hvd_shm_alltoall(shm, sends, both, sends, both, matrix) == HVD_INVALID);
}

void test_open_refuses_what_does_not_fit() {
  const uint64_t bytes = hvd_shm_bytes(2, 4096, 4);
  CHECK(bytes >= 2 * 4 * (4096 + 2048));
  CHECK(hvd_shm_bytes(0, 4096, 4) == 0 && hvd_shm_bytes(2, 0, 4) == 0 && hvd_shm_bytes(2, 4096, 1) == 0);
  CHECK(hvd_shm_bytes(2, UINT64_MAX, 4) == 0 && hvd_shm_bytes(INT32_MAX, 4096, 4) == 0);
  const int fd = memfd_create("hvd-test", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  hvd_shm *shm = nullptr, *other = nullptr;
  CHECK(hvd_shm_open(fd, 2, 2, 4096, 4, 0, kSecond, &shm) == HVD_INVALID);
  CHECK(hvd_shm_open(fd, 0, 2, 8192, 4, 0, kSecond, &shm) == HVD_INVALID);
  CHECK(hvd_shm_open(-1, 0, 2, 4096, 4, 0, kSecond, &shm) == HVD_SYSTEM);
  CHECK(hvd_shm_open(fd, 0, 2, 4096, 4, 0, kSecond, &shm) == HVD_OK);
  CHECK(hvd_shm_open(fd, 1, 2, 2048, 4, 0, kSecond, &other) == HVD_INVALID);
  close(fd);
  check_arguments(shm);
  hvd_shm_abort(shm);
  CHECK(hvd_shm_barrier(shm) == HVD_ABORTED);
  hvd_shm_close(shm);
}

}  // namespace

int main() {
  test_no_wakeup_is_lost();
  test_abort_ends_one_rank_and_stays();
  test_waiting_ends_at_the_timeout();
  test_open_refuses_what_does_not_fit();
}
