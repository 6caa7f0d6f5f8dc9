// All-to-all: cells travel the ring until they are where they belong.
//
// A rank's stream in the relay is all that it sends to others, one cell behind the other, what goes farthest first:
// to its left neighbour, which is size - 1 steps away, then to the one beyond, and last to its right neighbour. So each
// rank that a frame comes to keeps the end of it, if anything, and passes the beginning on; a frame may hold many small
// cells. What is passed on whole is passed on untouched: not copied, nor checksummed again.
//
// Cost: a cell for a rank at distance d crosses d links. With equal cells of b bytes each link carries
// b size (size - 1) / 2, where a network in which everybody can talk to everybody would carry b (size - 1): a ring is a
// good all-to-all for 2 or 3 ranks, and half of its bytes are others' from 4 on.

#include <algorithm>

#include "ring/collectives/relay.h"

namespace hvd::ring {
namespace {

class Cells : public RelayedStreams {
 public:
  // `stream`: what this rank sends to others, in the order of its stream. `receive_counts`: rows of each rank's cell.
  Cells(Ring* ring, const SpanList& stream, const SpanList& receives, const uint64_t* receive_counts,
        const uint64_t* matrix)
      : ring_(*ring),
        stream_(stream),
        receives_(receives),
        begins_(ring->size),
        frame_bytes_(ring->size),
        reach_(ring->size * ring->size) {
    const int32_t size = ring->size;
    uint64_t row = 0;
    for (int32_t origin = 0; origin < size; row += receive_counts[origin++]) {
      begins_[origin] = receives.begin_of(row);
      uint64_t* reach = &reach_[origin * size];
      for (int32_t step = size - 2; step >= 0; --step) {
        reach[step] = reach[step + 1] + matrix[origin * size + (origin + step + 1) % size];
      }
      frame_bytes_[origin] = ring->frame_bytes(reach[0]);
    }
  }

  uint64_t frames(int32_t origin) const noexcept override {
    return divide_up(reach({origin, 0, 0}), frame_bytes_[origin]);
  }

  uint64_t bytes(const Leg& leg) const noexcept override { return end(leg) - begin(leg); }

  bool load(const Leg& leg, Message* payload) override {
    return ring_.load_in(stream_, begin(leg), bytes(leg), payload);
  }

  bool take(const Leg& leg, Message* payload, uint32_t* crc) override {
    const Leg next = {leg.origin, leg.step + 1, leg.index};
    const uint64_t passed_on = bytes(next), kept = bytes(leg) - passed_on;
    // This rank's cell begins in the stream where what goes farther ends.
    const uint64_t place = begins_[leg.origin] + end(leg) - kept - reach(next);
    receives_.scatter_out(place, kept, payload->data() + passed_on);
    return passed_on == 0 || pass_on(passed_on, payload, crc);
  }

 private:
  // A frame's place in the stream; it ends earlier with each step that leaves a cell behind.
  uint64_t begin(const Leg& leg) const noexcept { return leg.index * frame_bytes_[leg.origin]; }
  uint64_t end(const Leg& leg) const noexcept {
    const uint64_t first = begin(leg);
    return std::max(first, std::min(first + frame_bytes_[leg.origin], reach(leg)));
  }

  // How many bytes of the stream travel in this step: the cells for ranks more than `step` ranks away.
  uint64_t reach(const Leg& leg) const noexcept { return reach_[leg.origin * ring_.size + leg.step]; }

  bool pass_on(uint64_t bytes, Message* payload, uint32_t* crc) {
    if (bytes == payload->size()) return true;
    Message shorter;
    if (!ring_.link.allocate(bytes, &shorter)) return false;
    std::memcpy(shorter.data(), payload->data(), bytes);
    payload->take(&shorter);
    *crc = ring_.link.checksum(*payload);
    return true;
  }

  Ring& ring_;
  const SpanList& stream_;
  const SpanList& receives_;
  std::vector<uint64_t> begins_;       // of each rank's cell in `receives_`
  std::vector<uint64_t> frame_bytes_;  // of each rank's stream
  std::vector<uint64_t> reach_;        // by origin and step; of step size - 1 it is 0
};

// The rows for others, farthest first.
std::vector<hvd_span> in_order_of_stream(const Ring& ring, const hvd_span* sends, const uint64_t* counts) {
  std::vector<const hvd_span*> begins = {sends};
  for (int32_t r = 0; r < ring.size; ++r) begins.push_back(begins.back() + counts[r]);
  std::vector<hvd_span> rows;
  for (int32_t distance = ring.size - 1; distance > 0; --distance) {
    const int32_t to = (ring.rank + distance) % ring.size;
    rows.insert(rows.end(), begins[to], begins[to + 1]);
  }
  return rows;
}

}  // namespace

bool Ring::alltoall(const hvd_span* sends, const uint64_t* send_counts, const SpanList& receives,
                    const uint64_t* receive_counts, const uint64_t* matrix) {
  const std::vector<hvd_span> rows = in_order_of_stream(*this, sends, send_counts);
  const SpanList stream(rows.data(), rows.size());
  Cells cells(this, stream, receives, receive_counts, matrix);
  if (!Relay(this, &cells).run()) return false;

  // This rank's own rows are copied while the last frames are in flight.
  const SpanList own(sends + count_rows(send_counts, rank), send_counts[rank]);
  uint64_t place = receives.begin_of(count_rows(receive_counts, rank));
  own.for_each_piece(0, own.bytes(), [&](const char* in, char*, uint64_t bytes) {
    receives.scatter_out(place, bytes, in);
    place += bytes;
  });
  return link.finish();
}

}  // namespace hvd::ring
