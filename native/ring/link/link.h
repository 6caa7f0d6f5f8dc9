// The two links of a rank: frames come in from the left neighbour and go out to the right one.
//
// There may be several connections to each neighbour. Frame i of a link goes over connection i modulo their number, and
// is expected there: both ends count alike, so nothing is negotiated. Each connection numbers its own frames, and has
// its own acknowledgements and keys; the end of one does not affect the others.
//
// A link outlives its connections. Connections are made, authenticated and closed elsewhere, and attached here, before
// the first collective and whenever one has ended; a new one resumes with the first frame that the receiver does not
// have. Nothing is lost or duplicated, because a receiver detaches the old connection before it reports its count.
// Without a connection a link looks like a slow one: a lost rank shows as an abort (the control plane knows which rank
// it was) or else as a timeout.
//
// Frames may have to be sent again, and their payload may lie in the caller's memory. It must not change until they are
// acknowledged, except when something has arrived over the ring that a rank can only have sent after it had the frame:
// then the frame has been received, and is never sent again even if its acknowledgement was lost with the connection.
// An all-reduce in place relies on that: the result, which was made from this rank's raw part, replaces it.
//
// Payloads that cross a network have a checksum. Over a Unix socket they only pass through the kernel's memory, where a
// checksum would protect against nothing and cost much processor time. Encrypted payloads have a tag instead.
//
// Every failure is final: `status` keeps the first one, each later call fails at once, and no memory is read any more.
// The thread that runs collectives uses a link frame by frame; other threads may call the functions marked "for any
// thread" at any time.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>

#include "hvdlite.h"
#include "kernels/spin.h"
#include "ring/link/message.h"
#include "ring/link/receiver.h"
#include "ring/link/sender.h"

namespace hvd::ring {

class Link {
 public:
  static constexpr size_t kMostConnections = 16;

  // `window`: frames that a rank may be ahead of its neighbour, who need not have received any of them.
  // `crypto`: what encrypts every frame, which then needs no checksum; null for none. It has to outlive the link.
  // `connections`: how many there are to each neighbour, at most kMostConnections.
  Link(uint64_t session, uint64_t window, bool has_checksums, const Patience& patience, const Crypto* crypto = nullptr,
       size_t connections = 1);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // ---- for the thread that runs collectives

  // The checksum with which a payload has to be sent. A payload that is passed on unchanged keeps its checksum. The
  // second form continues from the checksum `crc` of the bytes before.
  uint32_t checksum(const Message& payload) const noexcept { return checksum(0, payload.data(), payload.size()); }
  uint32_t checksum(uint32_t crc, const void* data, uint64_t bytes) const noexcept;

  // Sends a frame with this payload and its checksum, and leaves `payload` empty.
  Outcome try_send(Message* payload, uint32_t crc);
  bool send(Message* payload, uint32_t crc);

  // Receives the next frame, which must have a payload of `bytes`, and its checksum. With `into` the payload borrows
  // that memory of the caller's, which holds anything until the frame is here; it has to be the same in each attempt.
  Outcome try_receive(uint64_t bytes, Message* payload, uint32_t* crc, char* into = nullptr);
  bool receive(uint64_t bytes, Message* payload, uint32_t* crc, char* into = nullptr);

  // Sleeps until it may be possible to receive or to send a frame, whichever is asked for. False on abort and timeout.
  bool wait(bool until_readable, bool until_writable);

  bool allocate(uint64_t bytes, Message* payload);

  // The end of a collective: waits until the connection has all frames, and none refers to the caller's memory.
  bool finish();

  // ---- for any thread

  hvd_status status() noexcept;
  int error_number() noexcept;
  uint64_t corrupt() noexcept;

  // Detach a connection: nothing is read from it or written to it any more. detach_left returns how many frames have
  // come over it and those before it.
  uint64_t detach_left(size_t connection) noexcept;
  void detach_right(size_t connection) noexcept;

  // Attach a connection, with its keys if frames are encrypted. `received`: what detach_left returned at the other end.
  // False if that is impossible, or there is no memory.
  bool attach_left(size_t connection, int fd, const hvd_ring_keys* keys = nullptr) noexcept;
  bool attach_right(size_t connection, int fd, uint64_t received, const hvd_ring_keys* keys = nullptr) noexcept;

  // Between collectives: writes as much of the rest as the connection accepts. True if something remains.
  bool flush(size_t connection) noexcept;

  void abort() noexcept;

 private:
  using Lock = std::lock_guard<std::mutex>;

  bool enter() noexcept;
  bool is_usable() noexcept;
  bool fail(hvd_status status, int error_number = 0) noexcept;
  bool is_finished() noexcept;
  bool sleep(bool until_readable, bool until_acknowledged);
  void wake() noexcept;
  uint64_t progress() const noexcept;

  const bool has_checksums_;
  Patience patience_;  // of the thread that runs collectives, without the mutex

  std::mutex mutex_;  // guards all below but aborted_; never held while a thread sleeps
  std::deque<Sender> senders_;
  std::deque<Receiver> receivers_;
  size_t outgoing_ = 0;  // the connection over which the next frame goes
  size_t incoming_ = 0;  // the one over which the next frame comes
  bool is_in_collective_ = false;
  uint64_t progress_ = 0;  // what had been sent and received when the time limit was set
  int64_t time_limit_ns_ = 0;
  hvd_status status_ = HVD_OK;
  int error_number_ = 0;

  std::atomic<bool> aborted_{false};
  int wake_fd_ = -1;  // ends a sleep when a connection was attached, or on abort
};

}  // namespace hvd::ring
