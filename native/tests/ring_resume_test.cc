// Collectives stay exact while their connections are cut and replaced at random moments, by the frame and by the byte.

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/ring_ranks.h"

namespace {

using namespace hvd::ring;

// In place, so that a frame that is sent again after its memory has changed would show.
void check_allreduce(Ring& ring, uint64_t count, int32_t turn) {
  std::vector<int32_t> data(count);
  for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i) * (ring.rank + 1) + turn;
  const hvd_span span = span_of(data.data(), data.data(), 4 * count);
  const hvd_reduction sum = {HVD_INT32, HVD_SUM, 1.0, 1.0};
  CHECK(ring.allreduce(SpanList(&span, 1), sum));
  const int32_t ranks = ring.size * (ring.size + 1) / 2;
  for (uint64_t i = 0; i < count; ++i) CHECK(data[i] == static_cast<int32_t>(i) * ranks + ring.size * turn);
  // The memory is this rank's again: nobody may see what is written to it now.
  std::fill(data.begin(), data.end(), -1);
}

void check_allgather(Ring& ring, uint64_t bytes, int32_t turn) {
  std::vector<std::vector<uint8_t>> streams(ring.size, std::vector<uint8_t>(bytes));
  std::vector<hvd_span> spans;
  const std::vector<uint64_t> counts(ring.size, 1);
  std::fill(streams[ring.rank].begin(), streams[ring.rank].end(), static_cast<uint8_t>(ring.rank + turn));
  for (auto& stream : streams) spans.push_back(span_of(stream.data(), stream.data(), bytes));
  CHECK(ring.allgather(SpanList(spans.data(), spans.size()), counts.data()));
  for (int32_t r = 0; r < ring.size; ++r) {
    for (uint8_t byte : streams[r]) CHECK(byte == static_cast<uint8_t>(r + turn));
  }
}

class Mischief {
 public:
  Mischief(Ranks* ranks, int32_t size, size_t connections)
      : thread_([this, ranks, size, connections] { cut_and_connect(ranks, size, connections); }) {}

  ~Mischief() {
    is_over_ = true;
    thread_.join();
  }

  int32_t cuts() const { return cuts_; }

 private:
  void cut_and_connect(Ranks* ranks, int32_t size, size_t connections) {
    std::mt19937 random(size);
    for (; !is_over_; ++cuts_) {
      const int32_t rank = static_cast<int32_t>(random() % size);
      const size_t connection = random() % connections;
      if (random() % 2 == 0) ranks->cut(rank, connection);
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      ranks->connect(rank, connection);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    }
  }

  std::atomic<bool> is_over_{false};
  std::atomic<int32_t> cuts_{0};
  std::thread thread_;
};

void test_collectives_while_connections_come_and_go(int32_t size, uint64_t window, uint64_t chunk_bytes,
                                                    size_t connections = 1) {
  Ranks ranks(size, window, chunk_bytes, connections);
  Mischief mischief(&ranks, size, connections);
  for (int32_t turn = 0; mischief.cuts() < 30; ++turn) {
    ranks.run([turn](Ring& ring) {
      check_allreduce(ring, 200'000, turn);
      check_allgather(ring, 300'000, turn);
      for (uint64_t count : {1, 1000}) check_allreduce(ring, count, turn);
      CHECK(ring.barrier());
    });
  }
}

}  // namespace

int main() {
  for (int32_t size : {2, 3}) {
    for (uint64_t window : {1, 4}) {
      test_collectives_while_connections_come_and_go(size, window, kChunkBytes);
      test_collectives_while_connections_come_and_go(size, window, 16 * kChunkBytes);
    }
    test_collectives_while_connections_come_and_go(size, 8, kChunkBytes, 3);
    test_collectives_while_connections_come_and_go(size, 1, 16 * kChunkBytes, 2);
  }
}
