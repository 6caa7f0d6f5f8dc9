// Reduce-scatter: every part travels the ring once and ends, complete, on the rank that gets it.
//
// The part of rank p sets out from rank p + 1, raw, as that rank's stream in the relay. Each rank that it comes to
// folds its own input into it: into the message, which is sent on, so no rank's input changes and no other memory is
// needed. After size - 1 steps it reaches rank p, which rounds it once and writes it. 16-bit floats travel as in the
// all-reduce: raw in the first step, as float32 in all others.
//
// Cost: a rank sends all parts but its own and receives all but its left neighbour's, half of what an all-reduce moves.
// A reduction to one root loads every link but the root's outgoing one with the whole vector.

#include <algorithm>

#include "ring/collectives/fold.h"
#include "ring/collectives/relay.h"

namespace hvd::ring {
namespace {

// Elements of a frame are a multiple of this, so that frames of any type begin on cache lines if the part does.
constexpr uint64_t kElementStep = 64;

class Parts : public RelayedStreams {
 public:
  Parts(Ring* ring, const SpanList& spans, const uint64_t* counts, const hvd_reduction& reduction)
      : ring_(*ring), spans_(spans), fold_(&ring->link, spans, reduction) {
    uint64_t row = 0;
    for (int32_t r = 0; r < ring->size; ++r) {
      const uint64_t begin = spans.begin_of(row) / fold_.item();
      const uint64_t count = spans.begin_of(row += counts[r]) / fold_.item() - begin;
      const uint64_t frame = ring->frame_bytes(count * fold_.partial()) / fold_.partial() / kElementStep * kElementStep;
      parts_.push_back({begin, count, frame});
    }
  }

  uint64_t frames(int32_t origin) const noexcept override {
    const Part& part = part_of(origin);
    return divide_up(part.count, part.frame);
  }

  uint64_t bytes(const Leg& leg) const noexcept override {
    if (leg.step > last_step()) return 0;
    return hop_of(leg).count * (leg.step == 0 ? fold_.item() : fold_.partial());
  }

  bool load(const Leg& leg, Message* payload) override {
    const Fold::Hop hop = hop_of(leg);
    return ring_.load_in(spans_, hop.begin * fold_.item(), hop.count * fold_.item(), payload);
  }

  bool take(const Leg& leg, Message* payload, uint32_t* crc) override {
    if (leg.step < last_step()) return fold_.into_payload(hop_of(leg), payload, crc);
    fold_.into_memory(hop_of(leg), *payload);
    return true;
  }

 private:
  // In elements; `frame`: of each frame but the last.
  struct Part {
    uint64_t begin;
    uint64_t count;
    uint64_t frame;
  };

  int32_t last_step() const noexcept { return ring_.size - 2; }

  const Part& part_of(int32_t origin) const noexcept { return parts_[(origin + ring_.size - 1) % ring_.size]; }

  Fold::Hop hop_of(const Leg& leg) const noexcept {
    const Part& part = part_of(leg.origin);
    const uint64_t done = leg.index * part.frame;
    return {part.begin + done, std::min(part.frame, part.count - done), leg.step > 0};
  }

  Ring& ring_;
  const SpanList& spans_;
  const Fold fold_;
  std::vector<Part> parts_;
};

}  // namespace

bool Ring::reducescatter(const SpanList& spans, const uint64_t* counts, const hvd_reduction& reduction) {
  Parts parts(this, spans, counts, reduction);
  return Relay(this, &parts).run() && link.finish();
}

}  // namespace hvd::ring
