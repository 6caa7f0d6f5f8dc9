// A connection to the right neighbour: frames go out, acknowledgements come back.
//
// A frame is kept until it is acknowledged, since a connection may end with frames in it that nobody has read. Its
// successor begins with the first frame that the neighbour has not received. A payload in the caller's memory is not
// copied for that: it is read there again.
//
// Not for several threads at once; Link has the lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hvdlite.h"
#include "ring/link/cipher.h"
#include "ring/link/frame.h"
#include "ring/link/message.h"

namespace hvd::ring {

class Sender {
 public:
  // `frames`: how many are kept at most. `crypto`: null if nothing is encrypted.
  Sender(uint64_t session, uint64_t frames, const Crypto* crypto)
      : session_(session), cipher_(crypto), ack_cipher_(crypto), slots_(frames) {}

  // The connection, or -1. It belongs to the caller, who closes it after it was detached or replaced.
  int fd() const noexcept { return fd_; }

  // `received`: how many frames the neighbour has. False if it cannot have so many, or there is no memory.
  bool attach(int fd, uint64_t received, const hvd_ring_keys* keys) noexcept;
  void detach() noexcept { fd_ = -1; }

  bool has_room() const noexcept { return sent_ - acked_ < slots_.size(); }
  bool is_written() const noexcept { return written_ == sent_; }
  bool can_write() const noexcept { return fd_ >= 0 && !is_written(); }
  bool needs_caller_memory() const noexcept { return acked_ < held_end_; }

  // Takes a frame; there must be room.
  void push(Message* payload, uint32_t crc) noexcept;

  // Write and read what the connection takes and has. One that ended or broke is shut down and forgotten.
  void write() noexcept;
  void read_acks() noexcept;

  // Breaks a connection of which no packet has arrived for a few seconds. The kernel would go on trying for a quarter
  // of an hour; another connection may get through, for example past a firewall that has forgotten this one.
  void break_if_unanswered() noexcept;

  // Forgets all frames: nothing is read from any memory any more.
  void clear() noexcept;

  // Grows with every frame that is written for the first time, and with every one that is acknowledged.
  uint64_t progress() const noexcept { return furthest_ + acked_; }

 private:
  struct Slot {
    FrameHeader header;
    Message payload;
  };

  Slot& slot(uint64_t frame) noexcept { return slots_[frame % slots_.size()]; }
  bool seal_next() noexcept;
  bool is_good_ack() noexcept;
  void release(uint64_t acked) noexcept;
  void break_connection() noexcept;

  const uint64_t session_;
  int fd_ = -1;
  Cipher cipher_;
  Cipher ack_cipher_;

  // Frame numbers: acked_ <= written_ <= sent_ <= acked_ + slots_.size(). Frames from acked_ up to sent_ are kept.
  std::vector<Slot> slots_;
  uint64_t acked_ = 0;
  uint64_t written_ = 0;
  uint64_t sent_ = 0;
  uint64_t furthest_ = 0;  // what written_ was at most; it falls when a connection ends
  uint64_t held_end_ = 0;  // no frame from this one on refers to the caller's memory
  size_t offset_ = 0;      // bytes of frame written_ that this connection has taken

  Message sealed_;  // the payload of frame written_ encrypted, and its tag; empty until it is needed

  FrameHeader ack_;
  char ack_tag_[Cipher::kTagBytes];
  size_t ack_bytes_ = 0;  // how much of both has come
};

}  // namespace hvd::ring
