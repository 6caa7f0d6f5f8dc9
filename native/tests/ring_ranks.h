// The ranks of a ring as threads, over FakeLinks that hold few messages.

#ifndef HVDLITE_TESTS_RING_RANKS_H_
#define HVDLITE_TESTS_RING_RANKS_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ring/ring.h"
#include "tests/check.h"
#include "tests/ring_fake_zmq.h"

namespace hvd::ring {

constexpr uint64_t kChunkBytes = 4096;

class Ranks {
 public:
  explicit Ranks(int32_t size, uint64_t window = 3) : Ranks(size, window, 2 * window) {}

  // `capacity`: messages that a link holds.
  Ranks(int32_t size, uint64_t window, uint64_t capacity, uint64_t chunk_bytes = kChunkBytes) {
    for (int32_t rank = 0; rank < size; ++rank) wires_.push_back(std::make_unique<FakeLink>(capacity));
    for (int32_t rank = 0; rank < size; ++rank) {
      FakeLink* left = wires_[(rank + size - 1) % size].get();
      rings_.emplace_back(new Ring{
          rank, size, chunk_bytes, window, {fake_zmq(), left, wires_[rank].get(), 42, std::chrono::seconds(20)}});
      CHECK(rings_.back()->link.open());
    }
  }

  // The messages go first: they refer to the links of the rings.
  ~Ranks() {
    for (auto& wire : wires_) wire->drop();
  }

  Ring& operator[](int32_t rank) { return *rings_[rank]; }

  void run(const std::function<void(Ring&)>& work) {
    std::vector<std::thread> threads;
    for (auto& ring : rings_) threads.emplace_back([&work, &ring] { work(*ring); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<std::unique_ptr<FakeLink>> wires_;
  std::vector<std::unique_ptr<Ring>> rings_;
};

inline hvd_span span_of(const void* in, void* out, uint64_t bytes) {
  return {reinterpret_cast<uint64_t>(in), reinterpret_cast<uint64_t>(out), bytes};
}

}  // namespace hvd::ring

#endif  // HVDLITE_TESTS_RING_RANKS_H_
