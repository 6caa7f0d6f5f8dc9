// The shared-memory plane with threads as ranks. All ranks use one mapping, so that ThreadSanitizer sees every byte
// that they share at one address.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "shm/plane.h"
#include "tests/check.h"

namespace {

using hvd::shm::Geometry;
using hvd::shm::Patience;
using hvd::shm::Plane;

constexpr int64_t kSecond = 1'000'000'000;

class Ranks {
 public:
  Ranks(const Geometry& geometry, const Patience& patience) : bytes_(geometry.segment_bytes()) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory_ != MAP_FAILED);
    for (int32_t rank = 0; rank < geometry.size; ++rank) {
      planes_.push_back(std::make_unique<Plane>(rank, patience));
      CHECK(planes_.back()->segment().adopt(memory_, geometry) == HVD_OK);
    }
  }
  ~Ranks() { munmap(memory_, bytes_); }

  Plane& operator[](int32_t rank) { return *planes_[rank]; }

  void run(const std::function<void(Plane&)>& work) {
    std::vector<std::thread> threads;
    for (auto& plane : planes_) threads.emplace_back([&work, &plane] { work(*plane); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  uint64_t bytes_;
  void* memory_;
  std::vector<std::unique_ptr<Plane>> planes_;
};

hvd_span span_of(const void* in, void* out, uint64_t bytes) {
  return {reinterpret_cast<uint64_t>(in), reinterpret_cast<uint64_t>(out), bytes};
}

void check_allreduce(Plane& plane, uint64_t count) {
  std::vector<int32_t> data(count);
  for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i) * (plane.rank() + 1);
  // Three rows, one of them empty, that end nowhere near a chunk's end.
  const uint64_t cut = count / 3;
  const hvd_span spans[] = {span_of(&data[0], &data[0], 4 * cut),
                            {0, 0, 0},
                            span_of(data.data() + cut, data.data() + cut, 4 * (count - cut))};
  CHECK(hvd::shm::allreduce(plane, spans, 3, {HVD_INT32, HVD_SUM, 1.0, 1.0}) == HVD_OK);
  const int32_t factor = plane.size() * (plane.size() + 1) / 2;
  for (uint64_t i = 0; i < count; ++i) CHECK(data[i] == static_cast<int32_t>(i) * factor);
}

// Rank r contributes r * step bytes: rank 0 nothing.
void check_allgather(Plane& plane, uint64_t step) {
  std::vector<std::vector<uint8_t>> all(plane.size());
  std::vector<hvd_span> spans;
  const std::vector<uint64_t> counts(plane.size(), 1);
  for (int32_t rank = 0; rank < plane.size(); ++rank) {
    const bool is_own = rank == plane.rank();
    all[rank].assign(rank * step, is_own ? static_cast<uint8_t>(rank + 1) : 0);
    spans.push_back(span_of(is_own ? all[rank].data() : nullptr, all[rank].data(), all[rank].size()));
  }
  CHECK(hvd::shm::allgather(plane, spans.data(), counts.data()) == HVD_OK);
  for (int32_t rank = 0; rank < plane.size(); ++rank) {
    for (uint8_t byte : all[rank]) CHECK(byte == rank + 1);
  }
}

// All kinds and lengths in turn, so that every slot is used by every kind after every other.
void test_collectives_in_turn() {
  for (int32_t size : {1, 2, 3}) {
    for (int32_t slots : {2, 3, 4, 5}) {
      for (int64_t spin_ns : {0, 20'000}) {
        Ranks ranks({size, slots, 1024}, {spin_ns, 20 * kSecond});
        ranks.run([](Plane& plane) {
          for (uint64_t count : {1, 50, 255, 256, 257, 3001, 20'000, 17}) {
            check_allreduce(plane, count);
            check_allgather(plane, count);
            CHECK(hvd::shm::barrier(plane) == HVD_OK);
            check_allreduce(plane, count + 1);
          }
        });
      }
    }
  }
}

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
  float value = 1;
  const hvd_span uneven = span_of(&value, &value, 3);
  const hvd_reduction sum = {HVD_FLOAT32, HVD_SUM, 1.0, 1.0}, unknown = {HVD_FLOAT32, 2, 1.0, 1.0};
  CHECK(hvd_shm_allreduce(shm, &uneven, 1, &sum) == HVD_INVALID);
  CHECK(hvd_shm_allreduce(shm, &uneven, 1, &unknown) == HVD_INVALID);
  hvd_shm_abort(shm);
  CHECK(hvd_shm_barrier(shm) == HVD_ABORTED);
  hvd_shm_close(shm);
}

}  // namespace

int main() {
  test_collectives_in_turn();
  test_no_wakeup_is_lost();
  test_abort_ends_one_rank_and_stays();
  test_waiting_ends_at_the_timeout();
  test_open_refuses_what_does_not_fit();
}
