// The ranks of a shared-memory plane as threads. All use one mapping, so that ThreadSanitizer sees every byte that they
// share at one address.

#pragma once

#include <sys/mman.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "shm/plane.h"
#include "tests/check.h"

namespace hvd::shm {

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

inline hvd_span span_of(const void* in, void* out, uint64_t bytes) {
  return {reinterpret_cast<uint64_t>(in), reinterpret_cast<uint64_t>(out), bytes};
}

}  // namespace hvd::shm
