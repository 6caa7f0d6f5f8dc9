// The two connections of a rank: frames come in from the left neighbour and go out to the right one.
//
// `left` is a ROUTER socket, to which anybody may connect; it names the connection of every message. The first frame of
// a link is empty, a greeting: the connection that it comes over is the left neighbour's, since it carries the
// session's number, which only ranks of the job can know. What arrives over any other connection, before or after, is
// dropped unread. `right` is a DEALER with one connection, to a right neighbour that has proved who it is.
//
// Neither socket drops anything: at its high-water mark `right` refuses a frame until the neighbour has read some. A
// neighbour that went away looks the same, so that a lost rank shows as an abort (whoever watches the ranks knows which
// one it was) and, without one, as a timeout.
//
// Payloads that cross a network are check-summed. Over a Unix socket they only pass through the kernel's memory, where
// a checksum would protect from nothing and cost a quarter of the processor time.
//
// Every failure is final: `status` keeps the first one and each later call fails at once. All functions belong to the
// thread that runs collectives, except `abort` and `drain`.

#ifndef HVDLITE_RING_LINK_H_
#define HVDLITE_RING_LINK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "hvdlite.h"
#include "ring/message.h"
#include "ring/releases.h"
#include "ring/zmq.h"

namespace hvd::ring {

enum class Outcome { kDone, kNotYet, kFailed };

class Link {
 public:
  Link(const Zmq& zmq, void* left, void* right, uint64_t session, std::chrono::nanoseconds progress_timeout);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Greets the right neighbour.
  bool open();

  const Zmq& zmq() const noexcept { return zmq_; }
  hvd_status status() const noexcept { return status_; }
  int error_number() const noexcept { return error_number_; }

  // The checksum with which `payload` has to be sent. A payload that is passed on has `received`, the one it came with.
  uint32_t checksum(Message* payload) const noexcept;
  uint32_t checksum(Message* payload, uint32_t received) const noexcept;

  // Sends a frame with this payload and its checksum, and leaves `payload` empty.
  Outcome try_send(Message* payload, uint32_t crc);
  bool send(Message* payload, uint32_t crc);

  // Receives the next frame, which must have a payload of `bytes`, and its checksum.
  Outcome try_receive(uint64_t bytes, Message* payload, uint32_t* crc);
  bool receive(uint64_t bytes, Message* payload, uint32_t* crc);

  // Sleeps until a frame can be received or sent, whichever is asked for. False on abort and timeout.
  bool wait(bool until_readable, bool until_writable);

  bool allocate(uint64_t bytes, Message* payload);

  // Makes `payload` refer to memory of the caller, which must stay as it is until `settle` or `drain` succeeded.
  bool borrow(void* data, uint64_t bytes, Message* payload);

  // Waits until no frame refers to the caller's memory: the end of a collective.
  bool settle();

  void abort() noexcept;
  bool drain(std::chrono::nanoseconds timeout) { return releases_.drain(timeout); }

 private:
  bool fail(hvd_status status, int error_number = 0) noexcept;
  Outcome failure(hvd_status status, int error_number = 0) noexcept;
  bool is_usable() noexcept;
  Outcome take(Message* part) noexcept;
  Outcome give(Message* part, int flags) noexcept;
  Outcome take_message(std::string* connection, Message* header, Message* payload, bool* is_frame);
  bool is_next(Message* header, Message* payload, uint64_t bytes, uint32_t* crc) const noexcept;

  const Zmq zmq_;
  void* const left_;
  void* const right_;
  const uint64_t session_;
  const std::chrono::nanoseconds progress_timeout_;
  const bool left_is_local_;
  const bool right_is_local_;

  std::string left_connection_;  // empty until the left neighbour has greeted
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  bool header_is_sent_ = false;

  hvd_status status_ = HVD_OK;
  int error_number_ = 0;
  std::atomic<bool> aborted_{false};
  int abort_fd_ = -1;
  Releases releases_;
};

}  // namespace hvd::ring

#endif  // HVDLITE_RING_LINK_H_
