// One part of a ZeroMQ message, closed when it goes out of scope.

#ifndef HVDLITE_RING_MESSAGE_H_
#define HVDLITE_RING_MESSAGE_H_

#include <cstddef>

#include "ring/zmq.h"

namespace hvd::ring {

class Message {
 public:
  explicit Message(const Zmq& zmq) noexcept : zmq_(zmq) { zmq_.msg_init(&raw_); }
  ~Message() { zmq_.msg_close(&raw_); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  // Becomes a message with memory of its own, not initialised. False if there is no memory; the message is then empty.
  bool allocate(size_t bytes) noexcept {
    zmq_.msg_close(&raw_);
    const bool done = zmq_.msg_init_size(&raw_, bytes) == 0;
    if (!done) zmq_.msg_init(&raw_);
    return done;
  }

  // Becomes a message over memory of the caller. `release(data, hint)` runs, on any thread, once it is not used.
  bool borrow(void* data, size_t bytes, void (*release)(void*, void*), void* hint) noexcept {
    zmq_.msg_close(&raw_);
    const bool done = zmq_.msg_init_data(&raw_, data, bytes, release, hint) == 0;
    if (!done) zmq_.msg_init(&raw_);
    return done;
  }

  // Takes the content of `other`, which is empty afterwards.
  void take(Message* other) noexcept { zmq_.msg_move(&raw_, &other->raw_); }

  char* data() noexcept { return static_cast<char*>(zmq_.msg_data(&raw_)); }
  size_t size() const noexcept { return zmq_.msg_size(&raw_); }
  bool more() const noexcept { return zmq_.msg_more(&raw_) != 0; }
  ZmqMessage* raw() noexcept { return &raw_; }

 private:
  const Zmq& zmq_;
  ZmqMessage raw_;
};

}  // namespace hvd::ring

#endif  // HVDLITE_RING_MESSAGE_H_
