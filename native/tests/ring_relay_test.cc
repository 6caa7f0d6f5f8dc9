// Reduce-scatter and all-to-all, which use the relay, over links that hold no more than it needs.

#include <random>
#include <string>
#include <vector>

#include "kernels/crc32c.h"
#include "ring/link/frame.h"
#include "tests/check.h"
#include "tests/ring_ranks.h"

namespace {

using namespace hvd::ring;
using Lengths = std::vector<uint64_t>;

// Byte `i` of what one rank sends to another.
uint8_t byte_at(int32_t from, int32_t to, uint64_t i) { return static_cast<uint8_t>(31 * from + 7 * to + i + i / 256); }

// Some zero, some short, some of many frames.
Lengths random_lengths(size_t n, std::mt19937* random) {
  const uint64_t most[] = {0, 3, 5000, 150000};
  Lengths lengths(n);
  for (uint64_t& length : lengths) length = (*random)() % (most[(*random)() % 4] + 1);
  return lengths;
}

// Cells in two rows each, cut at places that differ between sender and receiver.
struct Rows {
  explicit Rows(const std::vector<std::vector<uint8_t>>& cells, uint64_t parts) : counts(cells.size(), 2) {
    for (const auto& cell : cells) {
      // At its reading address for the sender, at its writing address for the receiver.
      uint8_t* data = const_cast<uint8_t*>(cell.data());
      const uint64_t cut = cell.size() / parts;
      spans.push_back(span_of(data, data, cut));
      spans.push_back(span_of(data + cut, data + cut, cell.size() - cut));
    }
  }
  std::vector<hvd_span> spans;
  Lengths counts;
};

bool alltoall(Ring& ring, const std::vector<std::vector<uint8_t>>& sent, std::vector<std::vector<uint8_t>>* received,
              const Lengths& matrix) {
  const Rows sends(sent, 3), receives(*received, 5);
  const SpanList list(receives.spans.data(), receives.spans.size());
  return ring.alltoall(sends.spans.data(), sends.counts.data(), list, receives.counts.data(), matrix.data());
}

void check_alltoall(Ring& ring, const Lengths& matrix) {
  std::vector<std::vector<uint8_t>> sent(ring.size), received(ring.size);
  for (int32_t r = 0; r < ring.size; ++r) {
    sent[r].resize(matrix[ring.rank * ring.size + r]);
    for (uint64_t i = 0; i < sent[r].size(); ++i) sent[r][i] = byte_at(ring.rank, r, i);
    received[r].resize(matrix[r * ring.size + ring.rank]);
  }
  CHECK(alltoall(ring, sent, &received, matrix));
  for (int32_t r = 0; r < ring.size; ++r) {
    for (uint64_t i = 0; i < received[r].size(); ++i) CHECK(received[r][i] == byte_at(r, ring.rank, i));
  }
}

// Parts of int32 in two rows each, the second of which this rank writes elsewhere.
void check_reducescatter(Ring& ring, const Lengths& lengths) {
  std::vector<std::vector<int32_t>> parts;
  std::vector<hvd_span> spans;
  for (uint64_t length : lengths) {
    parts.emplace_back(length);
    for (uint64_t i = 0; i < length; ++i) parts.back()[i] = static_cast<int32_t>(i) * (ring.rank + 1);
  }
  const std::vector<std::vector<int32_t>> before = parts;
  std::vector<int32_t> out(lengths[ring.rank]);
  for (int32_t r = 0; r < ring.size; ++r) {
    const uint64_t cut = lengths[r] / 3;
    int32_t* data = parts[r].data();
    const bool is_own = r == ring.rank;
    spans.push_back(span_of(data, is_own ? data : nullptr, 4 * cut));
    spans.push_back(span_of(data + cut, is_own ? out.data() + cut : nullptr, 4 * (lengths[r] - cut)));
  }
  const Lengths counts(ring.size, 2);
  const hvd_reduction sum = {HVD_INT32, HVD_SUM, 1.0, 1.0};
  CHECK(ring.reducescatter(SpanList(spans.data(), spans.size()), counts.data(), sum));
  const int32_t ranks = ring.size * (ring.size + 1) / 2;
  for (int32_t r = 0; r < ring.size; ++r) {
    if (r != ring.rank) CHECK(parts[r] == before[r]);
  }
  for (uint64_t i = 0; i < out.size(); ++i) {
    CHECK((i < out.size() / 3 ? parts[ring.rank] : out)[i] == static_cast<int32_t>(i) * ranks);
  }
}

// bfloat16 travels raw, then as float32, and is rounded once: 1 + 2^-8 twice is lost if it is rounded at each hop.
void check_partial_results(Ring& ring, uint64_t count) {
  constexpr uint16_t kOne = 0x3f80, kSmall = 0x3b80;  // 1 and 2^-8; bfloat16 has no 1 + 2^-8
  std::vector<uint16_t> data(3 * count, ring.rank == 0 ? kOne : kSmall);
  std::vector<hvd_span> spans;
  for (int32_t r = 0; r < 3; ++r) spans.push_back(span_of(&data[r * count], &data[r * count], 2 * count));
  const Lengths counts(3, 1);
  const hvd_reduction sum = {HVD_BFLOAT16, HVD_SUM, 1.0, 1.0};
  CHECK(ring.size == 3 && ring.reducescatter(SpanList(spans.data(), 3), counts.data(), sum));
  for (uint64_t i = 0; i < count; ++i) CHECK(data[ring.rank * count + i] == 0x3f81);  // 1 + 2^-7
}

// Both back to back without a barrier, so that a rank meets frames of the next one while others are in the last.
void test_any_mix_of_lengths(int32_t size, uint64_t window, uint64_t chunk_bytes, size_t connections = 1) {
  Ranks ranks(size, window, chunk_bytes, connections);
  ranks.run([size](Ring& ring) {
    std::mt19937 random(size);  // the same on all ranks
    for (int turn = 0; turn < 12; ++turn) {
      check_reducescatter(ring, random_lengths(size, &random));
      check_alltoall(ring, random_lengths(size * size, &random));
    }
    for (uint64_t length : {0, 1, 1023, 1024, 1025}) {
      check_reducescatter(ring, Lengths(size, length));
      check_alltoall(ring, Lengths(size * size, length));
    }
  });
}

void test_one_rank_alone_sends_or_receives() {
  for (int32_t one = 0; one < 4; ++one) {
    Ranks(4, 2).run([one](Ring& ring) {
      Lengths to_one(16), from_one(16), part(4);
      for (int32_t r = 0; r < 4; ++r) to_one[4 * r + one] = from_one[4 * one + r] = 50001;
      part[one] = 50001;
      check_alltoall(ring, to_one);
      check_alltoall(ring, from_one);
      check_reducescatter(ring, part);
    });
  }
}

void test_abort_ends_both() {
  for (const bool exchanges : {false, true}) {
    std::vector<std::vector<uint8_t>> sent(3, std::vector<uint8_t>(200000)), received[2] = {sent, sent};
    Ranks ranks(3, 2, 16 * kChunkBytes);
    ranks.run([&](Ring& ring) {
      // Rank 2 never takes part, so the others cannot complete.
      if (ring.rank == 2) return ranks[0].link.abort(), ranks[1].link.abort();
      const Rows rows(received[ring.rank], 3);
      const hvd_reduction sum = {HVD_UINT8, HVD_SUM, 1.0, 1.0};
      const bool is_done = exchanges ? alltoall(ring, sent, &received[ring.rank], Lengths(9, 200000))
                                     : ring.reducescatter(SpanList(rows.spans.data(), 6), rows.counts.data(), sum);
      CHECK(!is_done && ring.link.status() == HVD_ABORTED);
    });
  }
}

}  // namespace

int main() {
  for (int32_t size = 2; size <= 5; ++size) {
    test_any_mix_of_lengths(size, 1, kChunkBytes);
    test_any_mix_of_lengths(size, 3, kChunkBytes);
    test_any_mix_of_lengths(size, 2, 16 * kChunkBytes);  // frames are sent from the caller's memory
    test_any_mix_of_lengths(size, 2, kChunkBytes, 3);
  }
  Ranks(3).run([](Ring& ring) { check_partial_results(ring, 10000); });
  test_one_rank_alone_sends_or_receives();
  test_abort_ends_both();
}
