// All-gather: every rank's stream travels the ring once; a broadcast is the case of one stream that is not empty.
//
// A rank sends its own stream, then passes on those of its neighbours in the order in which they come: from the left
// neighbour, from the one beyond, and so on, all but the right neighbour's own. Streams are cut into frames, and a
// frame is passed on as soon as it is here, so the streams move at the speed of one link however many ranks there are.
//
// Frames are written to their place on arrival and sent from there, so receiving never waits for sending: that makes
// deadlock impossible without any rule about who may send how much. The links' windows bound the memory.
//
// Cost: every rank receives all streams but its own; the last byte of a stream arrives size - 2 frames later at the
// last rank than at the first.

#include <algorithm>

#include "ring/ring.h"

namespace hvd::ring {
namespace {

// Walks over the frames of size - 1 streams, from `first` on downwards.
class StreamSequence {
 public:
  StreamSequence(const Ring& ring, const SpanList& spans, const uint64_t* counts, int32_t first)
      : ring_(ring), spans_(spans), counts_(counts), stream_((first + ring.size) % ring.size) {
    enter();
  }

  bool is_done() const noexcept { return streams_done_ == ring_.size - 1; }
  bool is_in_first() const noexcept { return streams_done_ == 0; }
  uint64_t begin() const noexcept { return begin_; }
  uint64_t bytes() const noexcept { return std::min(frame_bytes_, end_ - begin_); }

  void next() noexcept {
    begin_ += bytes();
    if (begin_ < end_) return;
    leave();
    enter();
  }

 private:
  // Finds the next stream that is not empty.
  void enter() noexcept {
    for (; !is_done(); leave()) {
      const uint64_t row = count_rows(counts_, stream_);
      begin_ = spans_.begin_of(row);
      end_ = spans_.begin_of(row + counts_[stream_]);
      if (begin_ == end_) continue;
      frame_bytes_ = ring_.frame_bytes(end_ - begin_);
      return;
    }
  }

  void leave() noexcept {
    ++streams_done_;
    stream_ = (stream_ + ring_.size - 1) % ring_.size;
  }

  const Ring& ring_;
  const SpanList& spans_;
  const uint64_t* counts_;
  int32_t stream_;
  int32_t streams_done_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  uint64_t frame_bytes_ = 0;
};

class Allgather {
 public:
  Allgather(Ring* ring, const SpanList& spans, const uint64_t* counts)
      : ring_(*ring),
        spans_(spans),
        outgoing_(*ring, spans, counts, ring->rank),
        incoming_(*ring, spans, counts, ring->rank - 1) {}

  bool run() {
    while (!outgoing_.is_done() || !incoming_.is_done()) {
      const Outcome sent = send_next();
      const Outcome received = sent == Outcome::kFailed ? Outcome::kFailed : receive_next();
      if (received == Outcome::kFailed) return false;
      if (sent == Outcome::kDone || received == Outcome::kDone) continue;
      if (!ring_.link.wait(!incoming_.is_done(), is_loaded_)) return false;
    }
    return ring_.link.finish();
  }

 private:
  // A frame of this rank's stream can always be sent, one of another stream once it was received.
  bool can_load() const noexcept { return !outgoing_.is_done() && (outgoing_.is_in_first() || received_ > passed_on_); }

  Outcome send_next() {
    if (!is_loaded_) {
      if (!can_load()) return Outcome::kNotYet;
      if (!load()) return Outcome::kFailed;
    }
    const Outcome outcome = ring_.link.try_send(&payload_, crc_);
    if (outcome != Outcome::kDone) return outcome;
    is_loaded_ = false;
    passed_on_ += outgoing_.is_in_first() ? 0 : 1;
    outgoing_.next();
    return Outcome::kDone;
  }

  bool load() {
    const uint64_t begin = outgoing_.begin(), bytes = outgoing_.bytes();
    if (outgoing_.is_in_first()) {
      if (!ring_.load_in(spans_, begin, bytes, &payload_)) return false;
      copy_own(begin, bytes);
    } else if (!ring_.load_out(spans_, begin, bytes, &payload_)) {
      return false;
    }
    crc_ = ring_.link.checksum(payload_);
    is_loaded_ = true;
    return true;
  }

  void copy_own(uint64_t begin, uint64_t bytes) {
    spans_.for_each_piece(begin, bytes, [](const char* in, char* out, uint64_t piece) {
      if (in != out) std::memcpy(out, in, piece);
    });
  }

  Outcome receive_next() {
    if (incoming_.is_done()) return Outcome::kNotYet;
    Message payload;
    uint32_t crc;
    const uint64_t begin = incoming_.begin(), bytes = incoming_.bytes();
    const Outcome outcome = ring_.link.try_receive(bytes, &payload, &crc, ring_.place_of(spans_, begin, bytes));
    if (outcome != Outcome::kDone) return outcome;
    if (!payload.is_borrowed()) spans_.scatter_out(begin, bytes, payload.data());
    ++received_;
    incoming_.next();
    return Outcome::kDone;
  }

  Ring& ring_;
  const SpanList& spans_;
  StreamSequence outgoing_;
  StreamSequence incoming_;
  Message payload_;
  uint32_t crc_ = 0;
  bool is_loaded_ = false;
  uint64_t received_ = 0;
  uint64_t passed_on_ = 0;
};

}  // namespace

bool Ring::allgather(const SpanList& streams, const uint64_t* counts) { return Allgather(this, streams, counts).run(); }

}  // namespace hvd::ring
