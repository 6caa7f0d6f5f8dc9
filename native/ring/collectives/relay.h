// The relay: streams that travel the ring or a part of it, the loop under all-gather, reduce-scatter and all-to-all.
//
// Every rank is the origin of one stream, cut into frames. A frame goes from neighbour to neighbour; each rank that
// receives the frame handles it as RelayedStreams defines and passes on what is left of it, until nothing is. In step s
// a link carries what left its origin s ranks further to the left.
//
// All links carry their frames in one order: by round, in a round by step, in a step by number; a round is the next
// `window` frames of every stream. Frames without bytes are left out, so nothing is paid for what nobody sends. Both
// ends of a link derive the order from the lengths of the streams, which every rank knows.
//
// A rank holds at most one frame to pass on, and receives nothing while it holds one. So its memory is bounded whatever
// the lengths are, and a slow link slows down the links before it. Ranks cannot wait for each other in a circle: of all
// frames that wait anywhere, consider one that comes first in the order. If that frame waits to be sent, everything
// sent before it over the same link has been received, so the link has room. If it waits on a link while its receiver
// holds an earlier frame, then the receiver's other link holds frames between the place of the earlier one in the order
// and one step later, which is less than `window` frames. Links take that many, so the earlier frame can be sent.

#pragma once

#include <cstdint>

#include "ring/ring.h"

namespace hvd::ring {

// Frame `index` of the stream of `origin` on the link that it travels in `step`.
struct Leg {
  int32_t origin;
  int32_t step;
  uint64_t index;
};

// The streams that are relayed. Except for `load` and `take`, the same on all ranks.
class RelayedStreams {
 public:
  virtual ~RelayedStreams() = default;

  // The number of frames in the stream of `origin`.
  virtual uint64_t frames(int32_t origin) const noexcept = 0;

  // Bytes of the payload on this leg, at most the ring's chunk. 0: the frame does not travel it, nor any after it.
  virtual uint64_t bytes(const Leg& leg) const noexcept = 0;

  // Makes the payload with which a frame of this rank's own stream sets out.
  virtual bool load(const Leg& leg, Message* payload) = 0;

  // The memory to receive the payload of this leg in; null: in a message.
  virtual char* place(const Leg&) const noexcept { return nullptr; }

  // Handles a payload that was received with checksum `crc`. If the frame travels a further leg, both become that
  // leg's.
  virtual bool take(const Leg& leg, Message* payload, uint32_t* crc) = 0;
};

// Walks over the frames of one link in their order. `first`: the origin of what the link carries in step 0.
class LegSequence {
 public:
  LegSequence(const RelayedStreams& streams, const Ring& ring, int32_t first);

  bool is_done() const noexcept { return round_ == rounds_; }
  const Leg& leg() const noexcept { return leg_; }
  uint64_t bytes() const noexcept { return bytes_; }
  void next() noexcept;

 private:
  bool is_on_leg() noexcept;
  void enter(int32_t step) noexcept;
  void find() noexcept;

  const RelayedStreams& streams_;
  const int32_t size_;
  const uint64_t window_;
  const int32_t first_;
  uint64_t rounds_ = 0;
  uint64_t round_ = 0;
  uint64_t end_ = 0;  // of the frames of this round and step
  uint64_t bytes_ = 0;
  Leg leg_ = {0, 0, 0};
};

class Relay {
 public:
  Relay(Ring* ring, RelayedStreams* streams);

  // Returns once all frames of both links have passed. Borrowed memory may still be in use: see Link::finish.
  bool run();

 private:
  struct OutgoingFrame {
    Message payload;
    uint32_t crc = 0;
    bool is_ready = false;
  };

  OutgoingFrame& next_outgoing() noexcept { return outgoing_.leg().step == 0 ? own_ : passing_; }
  bool can_receive() const noexcept { return !incoming_.is_done() && !passing_.is_ready; }
  Outcome send_next();
  Outcome receive_next();

  Link& link_;
  RelayedStreams& streams_;
  LegSequence outgoing_;
  LegSequence incoming_;
  OutgoingFrame own_;
  OutgoingFrame passing_;
};

}  // namespace hvd::ring
