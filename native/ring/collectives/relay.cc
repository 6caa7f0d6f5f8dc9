#include "ring/collectives/relay.h"

#include <algorithm>

namespace hvd::ring {

LegSequence::LegSequence(const RelayedStreams& streams, const Ring& ring, int32_t first)
    : streams_(streams), size_(ring.size), window_(ring.window), first_((first + ring.size) % ring.size) {
  for (int32_t origin = 0; origin < size_; ++origin) {
    const uint64_t frames = streams.frames(origin);
    rounds_ = std::max(rounds_, divide_up(frames, window_));
  }
  enter(0);
  find();
}

void LegSequence::next() noexcept {
  ++leg_.index;
  find();
}

// Goes on to the next frame that has bytes, or to the end.
void LegSequence::find() noexcept {
  while (!is_done() && !is_on_leg()) {
    const bool is_last_step = leg_.step == size_ - 2;
    round_ += is_last_step;
    enter(is_last_step ? 0 : leg_.step + 1);
  }
}

void LegSequence::enter(int32_t step) noexcept {
  const int32_t origin = (first_ + size_ - step) % size_;
  leg_ = {origin, step, round_ * window_};
  end_ = std::min(leg_.index + window_, streams_.frames(origin));
}

bool LegSequence::is_on_leg() noexcept {
  for (; leg_.index < end_; ++leg_.index) {
    bytes_ = streams_.bytes(leg_);
    if (bytes_ > 0) return true;
  }
  return false;
}

Relay::Relay(Ring* ring, RelayedStreams* streams)
    : link_(ring->link),
      streams_(*streams),
      outgoing_(*streams, *ring, ring->rank),
      incoming_(*streams, *ring, ring->rank - 1) {}

bool Relay::run() {
  while (!outgoing_.is_done() || !incoming_.is_done()) {
    const Outcome sent = send_next();
    const Outcome received = sent == Outcome::kFailed ? Outcome::kFailed : receive_next();
    if (received == Outcome::kFailed) return false;
    if (sent == Outcome::kDone || received == Outcome::kDone) continue;
    const bool has_to_send = !outgoing_.is_done() && next_outgoing().is_ready;
    if (!link_.wait(can_receive(), has_to_send)) return false;
  }
  return true;
}

Outcome Relay::send_next() {
  if (outgoing_.is_done()) return Outcome::kNotYet;
  OutgoingFrame& frame = next_outgoing();
  if (!frame.is_ready) {
    if (&frame == &passing_) return Outcome::kNotYet;
    if (!streams_.load(outgoing_.leg(), &frame.payload)) return Outcome::kFailed;
    frame.crc = link_.checksum(frame.payload);
    frame.is_ready = true;
  }
  const Outcome outcome = link_.try_send(&frame.payload, frame.crc);
  if (outcome != Outcome::kDone) return outcome;
  frame.is_ready = false;
  outgoing_.next();
  return Outcome::kDone;
}

Outcome Relay::receive_next() {
  if (!can_receive()) return Outcome::kNotYet;
  Leg leg = incoming_.leg();
  OutgoingFrame& frame = passing_;
  const Outcome outcome = link_.try_receive(incoming_.bytes(), &frame.payload, &frame.crc, streams_.place(leg));
  if (outcome != Outcome::kDone) return outcome;
  if (!streams_.take(leg, &frame.payload, &frame.crc)) return Outcome::kFailed;
  ++leg.step;
  frame.is_ready = streams_.bytes(leg) > 0;
  incoming_.next();
  return Outcome::kDone;
}

}  // namespace hvd::ring
