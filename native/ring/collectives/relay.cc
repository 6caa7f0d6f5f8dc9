#include "ring/collectives/relay.h"

#include <algorithm>

namespace hvd::ring {

Course::Course(const Cargo& cargo, const Ring& ring, int32_t first)
    : cargo_(cargo), size_(ring.size), window_(ring.window), first_((first + ring.size) % ring.size) {
  for (int32_t origin = 0; origin < size_; ++origin) {
    const uint64_t frames = cargo.frames(origin);
    rounds_ = std::max(rounds_, frames / window_ + (frames % window_ != 0));
  }
  enter(0);
  find();
}

void Course::next() noexcept {
  ++leg_.index;
  find();
}

// Goes on to the next frame that has bytes, or to the end.
void Course::find() noexcept {
  while (!is_done() && !is_on_leg()) {
    const bool is_last_step = leg_.step == size_ - 2;
    round_ += is_last_step;
    enter(is_last_step ? 0 : leg_.step + 1);
  }
}

void Course::enter(int32_t step) noexcept {
  const int32_t origin = (first_ + size_ - step) % size_;
  leg_ = {origin, step, round_ * window_};
  end_ = std::min(leg_.index + window_, cargo_.frames(origin));
}

bool Course::is_on_leg() noexcept {
  for (; leg_.index < end_; ++leg_.index) {
    bytes_ = cargo_.bytes(leg_);
    if (bytes_ > 0) return true;
  }
  return false;
}

Relay::Relay(Ring* ring, Cargo* cargo)
    : link_(ring->link),
      cargo_(*cargo),
      outgoing_(*cargo, *ring, ring->rank),
      incoming_(*cargo, *ring, ring->rank - 1) {}

bool Relay::run() {
  while (!outgoing_.is_done() || !incoming_.is_done()) {
    const Outcome sent = send_next();
    const Outcome received = sent == Outcome::kFailed ? Outcome::kFailed : receive_next();
    if (received == Outcome::kFailed) return false;
    if (sent == Outcome::kDone || received == Outcome::kDone) continue;
    const bool has_to_send = !outgoing_.is_done() && next_parcel().is_ready;
    if (!link_.wait(can_receive(), has_to_send)) return false;
  }
  return true;
}

Outcome Relay::send_next() {
  if (outgoing_.is_done()) return Outcome::kNotYet;
  Parcel& parcel = next_parcel();
  if (!parcel.is_ready) {
    if (&parcel == &passing_) return Outcome::kNotYet;
    if (!cargo_.load(outgoing_.leg(), &parcel.payload)) return Outcome::kFailed;
    parcel.crc = link_.checksum(parcel.payload);
    parcel.is_ready = true;
  }
  const Outcome outcome = link_.try_send(&parcel.payload, parcel.crc);
  if (outcome != Outcome::kDone) return outcome;
  parcel.is_ready = false;
  outgoing_.next();
  return Outcome::kDone;
}

Outcome Relay::receive_next() {
  if (!can_receive()) return Outcome::kNotYet;
  Leg leg = incoming_.leg();
  const Outcome outcome = link_.try_receive(incoming_.bytes(), &passing_.payload, &passing_.crc);
  if (outcome != Outcome::kDone) return outcome;
  if (!cargo_.take(leg, &passing_.payload, &passing_.crc)) return Outcome::kFailed;
  ++leg.step;
  passing_.is_ready = cargo_.bytes(leg) > 0;
  incoming_.next();
  return Outcome::kDone;
}

}  // namespace hvd::ring
