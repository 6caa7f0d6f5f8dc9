// All collectives of the shared-memory plane one after the other, over sizes, slots and lengths.

#include <vector>

#include "tests/shm_ranks.h"

namespace {

using namespace hvd::shm;

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

// Rank r gets r * step elements: rank 0 nothing. Half of the own part is written in place.
void check_reducescatter(Plane& plane, uint64_t step) {
  std::vector<std::vector<int32_t>> parts(plane.size());
  std::vector<hvd_span> spans;
  const std::vector<uint64_t> counts(plane.size(), 2);
  std::vector<int32_t> apart(plane.rank() * step);
  for (int32_t rank = 0; rank < plane.size(); ++rank) {
    std::vector<int32_t>& part = parts[rank];
    for (uint64_t i = 0; i < rank * step; ++i) part.push_back(static_cast<int32_t>(i + rank) * (plane.rank() + 1));
    const uint64_t half = part.size() / 2;
    const bool is_own = rank == plane.rank();
    spans.push_back(span_of(part.data(), is_own ? part.data() : nullptr, 4 * half));
    spans.push_back(span_of(part.data() + half, is_own ? apart.data() + half : nullptr, 4 * (part.size() - half)));
  }
  const std::vector<std::vector<int32_t>> before = parts;
  const hvd_reduction sum = {HVD_INT32, HVD_SUM, 1.0, 1.0};
  std::vector<int32_t> partials(apart.size());
  uint8_t* const unrounded = reinterpret_cast<uint8_t*>(partials.data());
  CHECK(hvd::shm::reducescatter(plane, spans.data(), counts.data(), sum, unrounded) == HVD_OK);
  CHECK(parts == before);
  CHECK(hvd::shm::reducescatter(plane, spans.data(), counts.data(), sum, nullptr) == HVD_OK);
  const uint64_t half = apart.size() / 2;
  const int32_t factor = plane.size() * (plane.size() + 1) / 2;
  for (uint64_t i = 0; i < apart.size(); ++i) {
    CHECK(partials[i] == static_cast<int32_t>(i + plane.rank()) * factor);
    CHECK((i < half ? parts[plane.rank()][i] : apart[i]) == partials[i]);
  }
  for (int32_t rank = 0; rank < plane.size(); ++rank) CHECK(rank == plane.rank() || parts[rank] == before[rank]);
}

// Rank s sends (s + 2 d) % 4 * step bytes to rank d, in rows that are cut differently on the two sides.
void check_alltoall(Plane& plane, uint64_t step) {
  const int32_t size = plane.size(), own = plane.rank();
  const auto value = [](int32_t from, int32_t to, uint64_t i) { return static_cast<uint8_t>(from * 16 + to + i * 7); };
  std::vector<uint64_t> matrix;
  for (int32_t cell = 0; cell < size * size; ++cell) matrix.push_back((cell / size + 2 * (cell % size)) % 4 * step);
  std::vector<std::vector<uint8_t>> sent(size), received(size);
  std::vector<hvd_span> sends, receives;
  const std::vector<uint64_t> two(size, 2), three(size, 3);
  for (int32_t peer = 0; peer < size; ++peer) {
    for (uint64_t i = 0; i < matrix[own * size + peer]; ++i) sent[peer].push_back(value(own, peer, i));
    received[peer].resize(matrix[peer * size + own]);
    const uint64_t third = sent[peer].size() / 3, half = received[peer].size() / 2;
    sends.push_back(span_of(sent[peer].data(), nullptr, third));
    sends.push_back(span_of(sent[peer].data() + third, nullptr, sent[peer].size() - third));
    receives.push_back(span_of(nullptr, received[peer].data(), half));
    receives.push_back({0, 0, 0});
    receives.push_back(span_of(nullptr, received[peer].data() + half, received[peer].size() - half));
  }
  CHECK(hvd::shm::alltoall(plane, sends.data(), two.data(), receives.data(), three.data(), matrix.data()) == HVD_OK);
  for (int32_t peer = 0; peer < size; ++peer) {
    for (uint64_t i = 0; i < received[peer].size(); ++i) CHECK(received[peer][i] == value(peer, own, i));
  }
}

// All kinds and lengths in turn, so that every slot is used by every kind after every other. Slots of 64 bytes have no
// room for a cache line of each rank.
void test_collectives_in_turn() {
  for (int32_t size : {1, 2, 3, 5}) {
    for (int32_t slots : {2, 3, 4, 5}) {
      for (uint64_t chunk_bytes : {64, 1024}) {
        for (int64_t spin_ns : {0, 20'000}) {
          Ranks ranks({size, slots, chunk_bytes}, {spin_ns, 20 * kSecond});
          ranks.run([chunk_bytes](Plane& plane) {
            for (uint64_t count : {1, 50, 255, 256, 257, 3001, 20'000, 17}) {
              if (count > 20 * chunk_bytes) continue;  // so many chunks only take long
              check_allreduce(plane, count);
              check_allgather(plane, count);
              check_reducescatter(plane, count);
              check_alltoall(plane, count);
              CHECK(hvd::shm::barrier(plane) == HVD_OK);
              check_reducescatter(plane, count);
              check_allreduce(plane, count + 1);
              check_alltoall(plane, count);
            }
          });
        }
      }
    }
  }
}

}  // namespace

int main() { test_collectives_in_turn(); }
