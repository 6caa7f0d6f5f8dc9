// A connection from the left neighbour: frames come in, acknowledgements go back.
//
// A frame that is not exactly the next one, or whose payload does not have its checksum or tag, is never used: the
// connection is shut down, and its successor begins with that very frame.
//
// Acknowledgements are rare, and never in the way of a small collective. There is one for every `ack_frames` frames,
// so that a sender that keeps more than that never waits for a receiver that is only slow; and one at the end of a
// collective in which the sender's caller lent memory (Kind::kHeld), because its call returns only then.
//
// Not for several threads at once; Link has the lock.

#pragma once

#include <cstddef>
#include <cstdint>

#include "hvdlite.h"
#include "ring/link/cipher.h"
#include "ring/link/frame.h"
#include "ring/link/message.h"
#include "ring/link/pieces.h"

namespace hvd::ring {

enum class Outcome { kDone, kNotYet, kFailed };

class Receiver {
 public:
  Receiver(uint64_t session, uint64_t ack_frames, bool has_checksums, const Crypto* crypto)
      : session_(session),
        ack_frames_(ack_frames),
        has_checksums_(has_checksums),
        cipher_(crypto),
        ack_cipher_(crypto) {}

  // The connection, or -1. It belongs to the caller, who closes it after it was detached or replaced.
  int fd() const noexcept { return fd_; }

  // False if there is no memory.
  bool attach(int fd, const hvd_ring_keys* keys) noexcept;
  void detach() noexcept { fd_ = -1; }

  // How many frames have been received over this connection and those before it.
  uint64_t received() const noexcept { return received_; }

  // Receives the next frame, which must have a payload of `bytes`, and its checksum; in memory of its own if `into` is
  // null. Fails only if there is no memory.
  Outcome receive(uint64_t bytes, Message* payload, uint32_t* crc, char* into = nullptr) noexcept;

  // The end of a collective: acknowledges now what the sender waits for.
  void end_collective() noexcept;

  // Frames that were damaged, in all and since the last good one.
  uint64_t corrupt() const noexcept { return corrupt_; }
  uint64_t corrupt_in_a_row() const noexcept { return corrupt_in_a_row_; }

 private:
  bool read(uint64_t bytes) noexcept;
  Pieces next_pieces(uint64_t bytes) noexcept;
  void came(uint64_t bytes) noexcept;
  bool is_good(uint64_t bytes) noexcept;
  void acknowledge() noexcept;
  void break_connection() noexcept;
  void refuse_frame() noexcept;

  const uint64_t session_;
  const uint64_t ack_frames_;
  const bool has_checksums_;
  Cipher cipher_;
  Cipher ack_cipher_;
  int fd_ = -1;

  FrameHeader header_;
  Message payload_;
  char tag_[Cipher::kTagBytes];
  size_t offset_ = 0;  // bytes of all three that have come
  uint32_t crc_ = 0;   // of what has come of the payload
  uint64_t received_ = 0;
  uint64_t acked_ = 0;
  bool sender_waits_ = false;

  uint64_t corrupt_ = 0;
  uint64_t corrupt_in_a_row_ = 0;
};

}  // namespace hvd::ring
