// All-gather: every rank's stream travels the ring once; a broadcast is the case of one stream that is not empty.
//
// Each rank that a frame of the relay comes to writes it to its place and passes it on unchanged, so the streams move
// at the speed of one link however many ranks there are. A frame that belongs into one row is received there and sent
// from there.
//
// Cost: every rank receives all streams but its own; the last byte of a stream arrives size - 2 frames later at the
// last rank than at the first.

#include <algorithm>

#include "ring/collectives/relay.h"

namespace hvd::ring {
namespace {

class Contributions : public RelayedStreams {
 public:
  Contributions(Ring* ring, const SpanList& spans, const uint64_t* counts) : ring_(*ring), spans_(spans) {
    uint64_t row = 0;
    for (int32_t r = 0; r < ring->size; ++r) {
      const uint64_t begin = spans.begin_of(row), bytes = spans.begin_of(row += counts[r]) - begin;
      streams_.push_back({begin, bytes, ring->frame_bytes(bytes)});
    }
  }

  uint64_t frames(int32_t origin) const noexcept override {
    return divide_up(streams_[origin].bytes, streams_[origin].frame);
  }

  uint64_t bytes(const Leg& leg) const noexcept override {
    const Stream& stream = streams_[leg.origin];
    return leg.step > ring_.size - 2 ? 0 : std::min(stream.frame, stream.bytes - leg.index * stream.frame);
  }

  bool load(const Leg& leg, Message* payload) override {
    spans_.for_each_piece(begin(leg), bytes(leg), [](const char* in, char* out, uint64_t piece) {
      if (in != out) std::memcpy(out, in, piece);
    });
    return ring_.load_in(spans_, begin(leg), bytes(leg), payload);
  }

  char* place(const Leg& leg) const noexcept override { return ring_.place_of(spans_, begin(leg), bytes(leg)); }

  bool take(const Leg& leg, Message* payload, uint32_t*) override {
    if (!payload->is_borrowed()) spans_.scatter_out(begin(leg), bytes(leg), payload->data());
    return true;
  }

 private:
  // In bytes; `frame`: of each frame but the last.
  struct Stream {
    uint64_t begin;
    uint64_t bytes;
    uint64_t frame;
  };

  uint64_t begin(const Leg& leg) const noexcept {
    const Stream& stream = streams_[leg.origin];
    return stream.begin + leg.index * stream.frame;
  }

  Ring& ring_;
  const SpanList& spans_;
  std::vector<Stream> streams_;
};

}  // namespace

bool Ring::allgather(const SpanList& spans, const uint64_t* counts) {
  Contributions contributions(this, spans, counts);
  return Relay(this, &contributions).run() && link.finish();
}

}  // namespace hvd::ring
