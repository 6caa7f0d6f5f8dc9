// All-reduce: a ring reduce-scatter followed by a ring all-gather, pipelined over frames.
//
// The batch is cut into equal rounds, a round into one share per rank, a share into `frames` frames. In a round every
// rank takes 2 (size - 1) steps. In step 0 it sends its raw part of share `rank`; in each further step it sends on what
// it received in the step before, combined with its own part of that share. After size - 1 steps share rank + 1 is
// complete here; it is rounded to the element type, written to memory, and travels the ring once more so that every
// rank writes the very same bytes.
//
// Steps and rounds form one long conveyor. A step has `frames` frames, so the frame that follows from received frame i
// is always frame i + frames: either the combination of frame i, or frame i itself, or, at the end of a round, the raw
// start of the next one. A rank therefore sends `frames` frames ahead and from then on one frame for each that it
// receives. It holds no queue, the pipe stays full across rounds, and each link carries at most size * frames frames:
// memory is bounded whatever the size of the batch.
//
// Cost: every rank sends and receives 2 (size - 1) / size of the batch (partial results of 16-bit floats are float32
// and count twice, sums for averages of integers up to four times) and waits 2 (size - 1) times for a frame, once in a
// batch. See Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

#include <algorithm>

#include "ring/collectives/fold.h"

namespace hvd::ring {
namespace {

// Elements of a frame are a multiple of this, so that frames of any type begin on cache lines if the batch does.
constexpr uint64_t kElementStep = 64;

struct Plan {
  uint64_t count;  // elements of the batch
  uint64_t rounds;
  uint64_t frames;          // per share
  uint64_t frame_elements;  // the last frames of a batch have fewer
};

Plan make_plan(const Ring& ring, uint64_t count, uint64_t partial_bytes) {
  const uint64_t size = static_cast<uint64_t>(ring.size);
  const uint64_t most = ring.chunk_bytes / partial_bytes / kElementStep * kElementStep;
  Plan plan;
  plan.count = count;
  plan.rounds = divide_up(count, size * ring.window * most);
  const uint64_t share = divide_up(count, plan.rounds * size);
  plan.frames = std::min(ring.window, divide_up(share, std::min(most, kMinFrameBytes / partial_bytes)));
  plan.frame_elements = divide_up(divide_up(share, plan.frames), kElementStep) * kElementStep;
  return plan;
}

class Allreduce {
 public:
  Allreduce(Ring* ring, const SpanList& spans, const hvd_reduction& reduction)
      : ring_(*ring),
        spans_(spans),
        fold_(&ring->link, spans, reduction),
        item_(fold_.item()),
        partial_(fold_.partial()),
        steps_(2 * static_cast<uint64_t>(ring->size - 1)),
        plan_(make_plan(*ring, spans.bytes() / item_, partial_)) {}

  bool run() {
    const uint64_t frames = plan_.rounds * steps_ * plan_.frames;
    for (uint64_t i = 0; i < plan_.frames; ++i) {
      if (!send_raw(i)) return false;
    }
    for (uint64_t i = 0; i < frames; ++i) {
      const Frame frame = received_frame(i);
      Message payload;
      uint32_t crc;
      if (!ring_.link.receive(frame.elements * frame.item, &payload, &crc, place_of(frame))) return false;
      if (!(is_gathered(frame) ? store(frame, &payload, crc) : combine(frame, &payload))) return false;
      const bool is_last_step = frame.step == steps_ - 1;
      if (is_last_step && i + plan_.frames < frames && !send_raw(i + plan_.frames)) return false;
    }
    return ring_.link.finish();
  }

 private:
  struct Frame {
    uint64_t step;
    uint64_t begin;  // first element
    uint64_t elements;
    uint64_t item;  // bytes of one element on the way
  };

  bool is_gathered(const Frame& frame) const noexcept { return frame.step >= steps_ / 2; }

  // Frame i as it comes from the left. In step s the left neighbour sends on the share that it received in step s - 1,
  // so the share's number falls by one with each step: from rank - 1, the left neighbour's own, in step 0, to rank + 1
  // in step size - 2, where this rank completes it. In step size - 1 the left neighbour sends the share that it
  // completed itself, which is share `rank`, and the numbers fall on from there.
  Frame received_frame(uint64_t i) const noexcept {
    const uint64_t size = static_cast<uint64_t>(ring_.size), rank = static_cast<uint64_t>(ring_.rank);
    const uint64_t step = i / plan_.frames % steps_;
    const uint64_t first = step < size - 1 ? rank + size - 1 : rank + size - 1 + size;
    return frame_at(i, step, (first - step) % size, step > 0 && step < size - 1 ? partial_ : item_);
  }

  Frame frame_at(uint64_t i, uint64_t step, uint64_t share, uint64_t item) const noexcept {
    const uint64_t round = i / plan_.frames / steps_;
    const uint64_t index = (round * static_cast<uint64_t>(ring_.size) + share) * plan_.frames + i % plan_.frames;
    const uint64_t begin = std::min(index * plan_.frame_elements, plan_.count);
    return {step, begin, std::min(plan_.frame_elements, plan_.count - begin), item};
  }

  bool send_raw(uint64_t i) {
    const Frame frame = frame_at(i, 0, static_cast<uint64_t>(ring_.rank), item_);
    Message payload;
    return ring_.load_in(spans_, frame.begin * item_, frame.elements * item_, &payload) &&
           ring_.link.send(&payload, ring_.link.checksum(payload));
  }

  // Adds this rank's part to what came and sends it on: as a partial result, or complete.
  bool combine(const Frame& frame, Message* payload) {
    const Fold::Hop hop = {frame.begin, frame.elements, frame.step > 0};
    uint32_t crc;
    if (frame.step < steps_ / 2 - 1) return fold_.into_payload(hop, payload, &crc) && ring_.link.send(payload, crc);
    fold_.into_memory(hop, *payload, &crc);
    Message complete;
    return ring_.load_out(spans_, frame.begin * item_, frame.elements * item_, &complete) &&
           ring_.link.send(&complete, crc);
  }

  // A complete share is received where it belongs, if it can be.
  char* place_of(const Frame& frame) const noexcept {
    return is_gathered(frame) ? ring_.place_of(spans_, frame.begin * item_, frame.elements * item_) : nullptr;
  }

  bool store(const Frame& frame, Message* payload, uint32_t crc) {
    if (!payload->is_borrowed()) {
      spans_.scatter_out(frame.begin * item_, frame.elements * item_, payload->data());
    }
    return frame.step == steps_ - 1 || ring_.link.send(payload, crc);
  }

  Ring& ring_;
  const SpanList& spans_;
  const Fold fold_;
  const uint64_t item_;
  const uint64_t partial_;
  const uint64_t steps_;
  const Plan plan_;
};

}  // namespace

bool Ring::allreduce(const SpanList& spans, const hvd_reduction& reduction) {
  if (spans.bytes() == 0) return true;
  return spans.bytes() <= std::min(kSmallBytes, chunk_bytes) ? allreduce_small(spans, reduction)
                                                             : Allreduce(this, spans, reduction).run();
}

}  // namespace hvd::ring
