// The ring's all-reduce, all-gather and barrier, over links that hold few messages.

#include <atomic>
#include <vector>

#include "tests/check.h"
#include "tests/ring_ranks.h"

namespace {

using namespace hvd::ring;

void check_allreduce(Ring& ring, uint64_t count) {
  std::vector<int32_t> data(count + 1), out(count + 1);
  for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i) * (ring.rank + 1);
  // A row in place, an empty one, and one that is written elsewhere; they end nowhere near a chunk's end.
  const uint64_t cut = count / 3;
  const hvd_span spans[] = {span_of(&data[0], &data[0], 4 * cut), span_of(nullptr, nullptr, 0),
                            span_of(&data[cut], &out[cut], 4 * (count - cut))};
  const hvd_reduction sum = {HVD_INT32, HVD_SUM, 1.0, 1.0};
  CHECK(ring.allreduce(SpanList(spans, 3), sum));
  const int32_t ranks = ring.size * (ring.size + 1) / 2;
  for (uint64_t i = 0; i < count; ++i) CHECK((i < cut ? data : out)[i] == static_cast<int32_t>(i) * ranks);
}

// bfloat16: raw, as float32 partial results, and rounded. 1 + 2^-8 twice is lost if it is rounded at each hop.
void check_partial_results(Ring& ring, uint64_t count) {
  constexpr uint16_t kOne = 0x3f80, kSmall = 0x3b80;  // 1 and 2^-8; bfloat16 has no 1 + 2^-8
  std::vector<uint16_t> data(count, ring.rank == 0 ? kOne : kSmall);
  const hvd_span span = span_of(data.data(), data.data(), 2 * count);
  const hvd_reduction sum = {HVD_BFLOAT16, HVD_SUM, 1.0, 1.0};
  CHECK(ring.size == 3 && ring.allreduce(SpanList(&span, 1), sum));
  for (uint16_t value : data) CHECK(value == 0x3f81);  // 1 + 2^-7
}

// Averages of integers: raw, as two int64, and divided.
void check_average(Ring& ring, uint64_t count) {
  std::vector<int64_t> data(count, INT64_MAX - ring.rank);
  const hvd_span span = span_of(data.data(), data.data(), 8 * count);
  CHECK(ring.size == 3 && ring.allreduce(SpanList(&span, 1), {HVD_INT64, HVD_AVERAGE, 1.0, 1.0 / 3}));
  for (int64_t value : data) CHECK(value == INT64_MAX - 1);
}

// A small batch is folded in the order of ranks everywhere: 1 + 1 is seen beside 2^24, a 1 alone would be lost.
void check_order_of_ranks(Ring& ring) {
  const float values[] = {1.0f, 1.0f, 16777216.0f, 0.0f};
  std::vector<float> data(3, values[ring.rank]);
  const hvd_span span = span_of(data.data(), data.data(), 4 * data.size());
  const hvd_reduction sum = {HVD_FLOAT32, HVD_SUM, 1.0, 0.5};
  CHECK(ring.size == 4 && ring.allreduce(SpanList(&span, 1), sum));
  for (float value : data) CHECK(value == 16777218.0f / 2);
}

void check_allgather(Ring& ring, const std::vector<uint64_t>& lengths) {
  std::vector<std::vector<uint8_t>> streams;
  std::vector<hvd_span> spans;
  std::vector<uint64_t> counts(lengths.size(), 2);
  for (size_t r = 0; r < lengths.size(); ++r) {
    streams.emplace_back(lengths[r] + 1, static_cast<uint8_t>(static_cast<int32_t>(r) == ring.rank ? r + 1 : 0));
  }
  for (size_t r = 0; r < lengths.size(); ++r) {
    const uint64_t cut = lengths[r] / 5;
    uint8_t* data = streams[r].data();
    spans.push_back(span_of(data, data, cut));
    spans.push_back(span_of(data + cut, data + cut, lengths[r] - cut));
  }
  CHECK(ring.allgather(SpanList(spans.data(), spans.size()), counts.data()));
  for (size_t r = 0; r < lengths.size(); ++r) {
    for (uint64_t i = 0; i < lengths[r]; ++i) CHECK(streams[r][i] == r + 1);
  }
}

void test_collectives(int32_t size, uint64_t window, size_t connections) {
  Ranks ranks(size, window, kChunkBytes, connections);
  ranks.run([size](Ring& ring) {
    for (uint64_t count : {0, 1, 63, 64, 65, 1000, 5000, 100003}) check_allreduce(ring, count);
    std::vector<uint64_t> lengths(size);
    check_allgather(ring, lengths);
    lengths[1] = 100003;
    check_allgather(ring, lengths);
    for (int32_t r = 0; r < size; ++r) lengths[r] = 20000 / (r + 1) + r;
    check_allgather(ring, lengths);
    CHECK(ring.barrier());
  });
}

void test_nobody_leaves_a_barrier_before_all_have_entered() {
  Ranks ranks(4);
  std::atomic<int32_t> entered{0};
  ranks.run([&](Ring& ring) {
    for (int32_t turn = 1; turn <= 100; ++turn) {
      ++entered;
      CHECK(ring.barrier());
      CHECK(entered >= 4 * turn);
      CHECK(ring.barrier());
    }
  });
}

}  // namespace

int main() {
  for (int32_t size = 2; size <= 5; ++size) {
    for (uint64_t window : {1, 3}) test_collectives(size, window, 1);
    test_collectives(size, 8, 3);
  }
  Ranks(3).run([](Ring& ring) {
    for (uint64_t count : {1, 100, 10000}) check_partial_results(ring, count);
    for (uint64_t count : {1, 100, 10000}) check_average(ring, count);
  });
  Ranks(4).run(check_order_of_ranks);
  test_nobody_leaves_a_barrier_before_all_have_entered();
}
