// All-reduces of memory in the arena on all, some or no ranks, in turn, and what remains of them when a rank is
// aborted.

#include <vector>

#include "shm/memory/arena.h"
#include "tests/shm_ranks.h"

namespace {

using namespace hvd::shm;

constexpr uint64_t kRegionBytes = 1 << 20;
constexpr hvd_reduction kSum = {HVD_INT32, HVD_SUM, 1.0, 1.0};

// Ranks whose regions are in reverse order, to distinguish ranks from regions.
class SharingRanks : public Ranks {
 public:
  explicit SharingRanks(const Geometry& geometry)
      : Ranks(geometry, {20'000, 20 * kSecond}), memory_(geometry.size * kRegionBytes / 8), arenas_(geometry.size) {
    std::vector<int32_t> regions;
    for (int32_t rank = 0; rank < geometry.size; ++rank) regions.push_back(geometry.size - 1 - rank);
    for (int32_t rank = 0; rank < geometry.size; ++rank) {
      arenas_[rank].adopt(memory_.data(), regions[rank], geometry.size, kRegionBytes);
      CHECK((*this)[rank].use(&arenas_[rank], regions.data()) == HVD_OK);
    }
  }

  int32_t* region(int32_t rank) { return reinterpret_cast<int32_t*>(arenas_[rank].own()); }
  Arena& arena(int32_t rank) { return arenas_[rank]; }

 private:
  std::vector<uint64_t> memory_;
  std::vector<Arena> arenas_;
};

// Two rows of `count` elements in all. Ranks in the bits of `sharing` have them in the arena, each at another place.
void check_allreduce(SharingRanks& ranks, Plane& plane, uint64_t count, uint32_t sharing, bool in_place) {
  std::vector<int32_t> apart(3 * count);
  const bool is_sharing = (sharing >> plane.rank() & 1) != 0;
  int32_t* data = is_sharing ? ranks.region(plane.rank()) + 8 * plane.rank() : apart.data();
  int32_t* out = in_place ? data : data + count + 5;
  for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i) * (plane.rank() + 1);
  const uint64_t cut = count / 3;
  const hvd_span spans[] = {span_of(data + cut, out + cut, 4 * (count - cut)), {0, 0, 0}, span_of(data, out, 4 * cut)};
  CHECK(hvd::shm::allreduce(plane, spans, 3, kSum) == HVD_OK);
  const int32_t factor = plane.size() * (plane.size() + 1) / 2;
  for (uint64_t i = 0; i < count; ++i) {
    CHECK(out[i] == static_cast<int32_t>(i) * factor);
    CHECK(in_place || data[i] == static_cast<int32_t>(i) * (plane.rank() + 1));
  }
}

void test_all_ways_in_turn() {
  for (int32_t size : {1, 2, 3, 5}) {
    for (int32_t slots : {2, 4}) {
      SharingRanks ranks({size, slots, 1024});
      ranks.run([&](Plane& plane) {
        for (uint64_t count : {50, 257, 3001, 20'000}) {
          for (uint32_t sharing : {0xffu, 0u, 0xffu, 1u, 0xfeu, 0xffu}) {
            check_allreduce(ranks, plane, count, sharing, true);
            check_allreduce(ranks, plane, count, sharing, false);
          }
          CHECK(hvd::shm::barrier(plane) == HVD_OK);
        }
      });
    }
  }
}

// A table of more rows than a slot has room for goes through the slots.
void test_many_rows() {
  SharingRanks ranks({3, 2, 1024});
  ranks.run([&](Plane& plane) {
    std::vector<hvd_span> spans;
    int32_t* data = ranks.region(plane.rank());
    for (uint64_t i = 0; i < 1000; ++i) {
      data[i] = plane.rank();
      spans.push_back(span_of(data + i, data + i, 4));
    }
    CHECK(hvd::shm::allreduce(plane, spans.data(), spans.size(), kSum) == HVD_OK);
    for (uint64_t i = 0; i < 1000; ++i) CHECK(data[i] == 3);
  });
}

void test_an_aborted_rank_and_one_that_stops_sharing() {
  SharingRanks ranks({2, 2, 1024});
  ranks.run([&](Plane& plane) {
    const hvd_span span = span_of(ranks.region(plane.rank()), ranks.region(plane.rank()), 8192);
    if (plane.rank() == 0) {
      plane.abort();
      CHECK(hvd::shm::allreduce(plane, &span, 1, kSum) == HVD_ABORTED);
    }
  });
  SharingRanks others({2, 2, 1024});
  others.run([&](Plane& plane) {
    others.arena(plane.rank()).stop_sharing();
    check_allreduce(others, plane, 3000, 3, true);  // through the slots
  });
}

void test_a_region_that_is_not_there_is_refused() {
  SharingRanks ranks({2, 2, 1024});
  const int32_t beyond[] = {1, 2}, another[] = {0, 1};
  CHECK(ranks[0].use(&ranks.arena(0), beyond) == HVD_INVALID);
  CHECK(ranks[0].use(&ranks.arena(0), another) == HVD_INVALID);
}

}  // namespace

int main() {
  test_all_ways_in_turn();
  test_many_rows();
  test_an_aborted_rank_and_one_that_stops_sharing();
  test_a_region_that_is_not_there_is_refused();
}
