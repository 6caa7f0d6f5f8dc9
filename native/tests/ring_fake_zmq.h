// An in-process stand-in for libzmq, so that sanitizers see every byte of the ring's frames and tests can damage them.
//
// A FakeLink is the connection from one rank's `right` to the next rank's `left`. As with the real library a full link
// refuses messages, messages travel whole, a receiver gets the connection's name as the first part, and borrowed memory
// is read late: when the message is received, after which it is released.

#ifndef HVDLITE_TESTS_RING_FAKE_ZMQ_H_
#define HVDLITE_TESTS_RING_FAKE_ZMQ_H_

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "ring/zmq.h"
#include "tests/check.h"

namespace hvd::ring {

// What a message part refers to: `own`, or memory that `release` gives back.
struct FakePart {
  std::string own;
  char* borrowed = nullptr;
  size_t borrowed_bytes = 0;
  void (*release)(void*, void*) = nullptr;
  void* hint = nullptr;
  bool more = false;

  char* data() { return borrowed != nullptr ? borrowed : own.data(); }
  size_t size() const { return borrowed != nullptr ? borrowed_bytes : own.size(); }
  void copy_and_release() {
    if (borrowed == nullptr) return;
    own.assign(borrowed, borrowed_bytes);
    borrowed = nullptr;
    release(nullptr, hint);
  }
};

// A level that poll() sees: readable while it is up.
class Level {
 public:
  Level() : fd_(eventfd(0, EFD_NONBLOCK)) { CHECK(fd_ >= 0); }
  ~Level() { close(fd_); }
  void set(bool up) {
    uint64_t count = 1;
    if (up == up_) return;
    CHECK((up ? write(fd_, &count, sizeof count) : read(fd_, &count, sizeof count)) == sizeof count);
    up_ = up;
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
  bool up_ = false;
};

class FakeLink {
 public:
  explicit FakeLink(size_t capacity, const std::string& endpoint = "tcp://127.0.0.1:1")
      : capacity_(capacity), endpoint_(endpoint) {
    update();
  }
  ~FakeLink() { drop(); }

  int send(FakePart* part, bool more) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (sending_.empty() && queue_.size() >= capacity_) return again();
    sending_.push_back(part);
    part->more = more;
    if (!more) push(std::move(sending_));
    return 0;
  }

  FakePart* receive() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty()) return nullptr;
    FakePart* part = queue_.front().front();
    queue_.front().pop_front();
    if (queue_.front().empty()) queue_.pop_front();
    update();
    part->copy_and_release();
    return part;
  }

  // Puts a message of these parts in the queue, as if it came over `connection`.
  void inject(const std::string& connection, const std::vector<std::string>& parts) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::deque<FakePart*> message;
    for (size_t i = 0; i < parts.size(); ++i) {
      message.push_back(new FakePart);
      message.back()->own = parts[i];
      message.back()->more = i + 1 < parts.size();
    }
    push(std::move(message), connection);
  }

  // Takes out the next message, without the connection's name.
  std::vector<std::string> take() {
    std::vector<std::string> parts;
    for (bool more = true; more;) {
      FakePart* part = receive();
      CHECK(part != nullptr);
      more = part->more;
      parts.push_back(part->own);
      delete part;
    }
    parts.erase(parts.begin());
    return parts;
  }

  // What closing the sockets does: all messages are released.
  void drop() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& message : queue_) {
      for (FakePart* part : message) {
        part->copy_and_release();
        delete part;
      }
    }
    queue_.clear();
    update();
  }

  const std::string& endpoint() const { return endpoint_; }
  int readable_fd() const { return readable_.fd(); }
  int writable_fd() const { return writable_.fd(); }

 private:
  static int again() {
    errno = EAGAIN;
    return -1;
  }

  void push(std::deque<FakePart*> message, const std::string& connection = "left") {
    message.push_front(new FakePart);
    message.front()->own = connection;
    message.front()->more = message.size() > 1;
    queue_.push_back(std::move(message));
    sending_.clear();
    update();
  }

  void update() {
    readable_.set(!queue_.empty());
    writable_.set(queue_.size() < capacity_);
  }

  const size_t capacity_;
  const std::string endpoint_;
  std::mutex mutex_;
  std::deque<FakePart*> sending_;
  std::deque<std::deque<FakePart*>> queue_;
  Level readable_;
  Level writable_;
};

inline FakePart*& part_of(const ZmqMessage* message) {
  return *reinterpret_cast<FakePart**>(const_cast<unsigned char*>(message->opaque));
}

inline int close_part(ZmqMessage* message) {
  part_of(message)->copy_and_release();
  delete part_of(message);
  part_of(message) = nullptr;
  return 0;
}

inline int set_part(ZmqMessage* message, FakePart* part) {
  part_of(message) = part;
  return 0;
}

inline int poll_links(ZmqPollItem* items, int n, long timeout_ms) {
  std::vector<pollfd> fds;
  for (int i = 0; i < n; ++i) {
    auto* link = static_cast<FakeLink*>(items[i].socket);
    const bool reads = items[i].events == kZmqPollIn;
    fds.push_back({link == nullptr ? items[i].fd : reads ? link->readable_fd() : link->writable_fd(), POLLIN, 0});
  }
  const int ready = poll(fds.data(), fds.size(), static_cast<int>(timeout_ms));
  for (int i = 0; i < n; ++i) items[i].revents = fds[i].revents != 0 ? items[i].events : 0;
  return ready;
}

// The table that the ring gets instead of libzmq's; its sockets are FakeLinks.
inline Zmq fake_zmq() {
  Zmq zmq;
  zmq.msg_init = [](ZmqMessage* message) { return set_part(message, new FakePart); };
  zmq.msg_init_size = [](ZmqMessage* message, size_t bytes) {
    set_part(message, new FakePart);
    part_of(message)->own.resize(bytes);
    return 0;
  };
  zmq.msg_init_data = [](ZmqMessage* message, void* data, size_t bytes, void (*release)(void*, void*), void* hint) {
    return set_part(message, new FakePart{{}, static_cast<char*>(data), bytes, release, hint, false});
  };
  zmq.msg_close = close_part;
  zmq.msg_move = [](ZmqMessage* to, ZmqMessage* from) {
    close_part(to);
    set_part(to, part_of(from));
    return set_part(from, new FakePart);
  };
  zmq.msg_send = [](ZmqMessage* message, void* socket, int flags) {
    if (static_cast<FakeLink*>(socket)->send(part_of(message), (flags & kZmqSendMore) != 0) < 0) return -1;
    return set_part(message, new FakePart);
  };
  zmq.msg_recv = [](ZmqMessage* message, void* socket, int) {
    FakePart* part = static_cast<FakeLink*>(socket)->receive();
    if (part == nullptr) {
      errno = EAGAIN;
      return -1;
    }
    close_part(message);
    return set_part(message, part);
  };
  zmq.msg_more = [](const ZmqMessage* message) { return part_of(message)->more ? 1 : 0; };
  zmq.msg_data = [](ZmqMessage* message) -> void* { return part_of(message)->data(); };
  zmq.msg_size = [](const ZmqMessage* message) { return part_of(message)->size(); };
  zmq.poll = poll_links;
  zmq.getsockopt = [](void* socket, int option, void* value, size_t* bytes) {
    CHECK(option == kZmqLastEndpoint);
    const std::string& endpoint = static_cast<FakeLink*>(socket)->endpoint();
    CHECK(endpoint.size() < *bytes);
    std::memcpy(value, endpoint.c_str(), endpoint.size() + 1);
    return 0;
  };
  zmq.last_errno = [] { return errno; };
  return zmq;
}

}  // namespace hvd::ring

#endif  // HVDLITE_TESTS_RING_FAKE_ZMQ_H_
