#include "ring/link.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "kernels/crc32c.h"
#include "ring/frame.h"

namespace hvd::ring {
namespace {

using Clock = std::chrono::steady_clock;

bool is_local(const Zmq& zmq, void* socket) noexcept {
  char endpoint[256] = {};
  size_t bytes = sizeof endpoint - 1;
  constexpr char kScheme[] = "ipc://";
  return zmq.getsockopt(socket, kZmqLastEndpoint, endpoint, &bytes) == 0 &&
         std::strncmp(endpoint, kScheme, sizeof kScheme - 1) == 0;
}

}  // namespace

Link::Link(const Zmq& zmq, void* left, void* right, uint64_t session, std::chrono::nanoseconds progress_timeout)
    : zmq_(zmq),
      left_(left),
      right_(right),
      session_(session),
      progress_timeout_(progress_timeout),
      left_is_local_(is_local(zmq, left)),
      right_is_local_(is_local(zmq, right)) {}

Link::~Link() {
  if (abort_fd_ >= 0) ::close(abort_fd_);
}

bool Link::open() {
  abort_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (abort_fd_ < 0) return fail(HVD_SYSTEM, errno);
  Message greeting(zmq_);
  return send(&greeting, 0);
}

bool Link::send(Message* payload, uint32_t crc) {
  for (;;) {
    const Outcome outcome = try_send(payload, crc);
    if (outcome != Outcome::kNotYet) return outcome == Outcome::kDone;
    if (!wait(false, true)) return false;
  }
}

bool Link::receive(uint64_t bytes, Message* payload, uint32_t* crc) {
  for (;;) {
    const Outcome outcome = try_receive(bytes, payload, crc);
    if (outcome != Outcome::kNotYet) return outcome == Outcome::kDone;
    if (!wait(true, false)) return false;
  }
}

Outcome Link::try_send(Message* payload, uint32_t crc) {
  if (!is_usable()) return Outcome::kFailed;
  // Once libzmq has the header it takes the payload too, unless the connection breaks in between. The rest of that
  // frame then waits for a room that never comes.
  if (!header_is_sent_) {
    const FrameHeader fields = seal(session_, sent_, static_cast<uint32_t>(payload->size()), crc);
    Message header(zmq_);
    if (!allocate(sizeof fields, &header)) return Outcome::kFailed;
    *reinterpret_cast<FrameHeader*>(header.data()) = fields;
    const Outcome outcome = give(&header, kZmqSendMore);
    if (outcome != Outcome::kDone) return outcome;
    header_is_sent_ = true;
  }
  const Outcome outcome = give(payload, 0);
  if (outcome == Outcome::kDone) {
    header_is_sent_ = false;
    ++sent_;
  }
  return outcome;
}

Outcome Link::try_receive(uint64_t bytes, Message* payload, uint32_t* crc) {
  if (!is_usable()) return Outcome::kFailed;
  for (;;) {
    std::string connection;
    Message header(zmq_);
    bool is_frame = false;
    const Outcome outcome = take_message(&connection, &header, payload, &is_frame);
    if (outcome != Outcome::kDone) return outcome;
    if (left_connection_.empty()) {
      if (!is_frame || !is_next(&header, payload, 0, crc)) continue;
      left_connection_ = connection;
      ++received_;
    } else if (connection == left_connection_) {
      if (!is_frame || !is_next(&header, payload, bytes, crc)) return failure(HVD_CORRUPT);
      ++received_;
      return Outcome::kDone;
    }
  }
}

// Reads a whole message, however many parts it has; a frame has a header and a payload after the connection's name.
Outcome Link::take_message(std::string* connection, Message* header, Message* payload, bool* is_frame) {
  Message part(zmq_);
  const Outcome outcome = take(&part);
  if (outcome != Outcome::kDone) return outcome;
  connection->assign(part.data(), part.size());
  int parts = 0;
  for (bool more = part.more(); more; ++parts) {
    Message* to = parts == 0 ? header : parts == 1 ? payload : &part;
    // libzmq delivers all parts of a message or none.
    if (take(to) != Outcome::kDone) return failure(HVD_CORRUPT);
    more = to->more();
  }
  *is_frame = parts == 2;
  return Outcome::kDone;
}

bool Link::is_next(Message* header, Message* payload, uint64_t bytes, uint32_t* crc) const noexcept {
  if (payload->size() != bytes) return false;
  *crc = left_is_local_ ? 0 : crc32c(0, payload->data(), bytes);
  return is_header(header->data(), header->size(), seal(session_, received_, static_cast<uint32_t>(bytes), *crc));
}

uint32_t Link::checksum(Message* payload) const noexcept {
  return right_is_local_ ? 0 : crc32c(0, payload->data(), payload->size());
}

uint32_t Link::checksum(Message* payload, uint32_t received) const noexcept {
  return left_is_local_ == right_is_local_ ? received : checksum(payload);
}

bool Link::wait(bool until_readable, bool until_writable) {
  ZmqPollItem items[3] = {{nullptr, abort_fd_, POLLIN, 0}, {}, {}};
  items[0].events = kZmqPollIn;
  int n = 1;
  if (until_readable) items[n++] = {left_, 0, kZmqPollIn, 0};
  if (until_writable) items[n++] = {right_, 0, kZmqPollOut, 0};
  const Clock::time_point deadline = Clock::now() + progress_timeout_;
  while (is_usable()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = zmq_.poll(items, n, left > 0 ? static_cast<long>(left) + 1 : 0);
    if (ready < 0 && zmq_.last_errno() != EINTR) return fail(HVD_SYSTEM, zmq_.last_errno());
    if (ready > 0 && items[0].revents == 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return fail(HVD_TIMED_OUT);
  }
  return false;
}

bool Link::allocate(uint64_t bytes, Message* payload) { return payload->allocate(bytes) || fail(HVD_SYSTEM, ENOMEM); }

bool Link::borrow(void* data, uint64_t bytes, Message* payload) {
  releases_.expect_one();
  if (payload->borrow(data, bytes, Releases::on_release, &releases_)) return true;
  Releases::on_release(data, &releases_);
  return fail(HVD_SYSTEM, ENOMEM);
}

bool Link::settle() {
  if (!is_usable()) return false;
  if (releases_.wait(progress_timeout_)) return true;
  return fail(aborted_.load(std::memory_order_acquire) ? HVD_ABORTED : HVD_TIMED_OUT);
}

void Link::abort() noexcept {
  // The flag is set before the wake-ups, so whoever they wake sees it.
  aborted_.store(true, std::memory_order_release);
  releases_.interrupt();
  const uint64_t one = 1;
  // A write can only fail because the counter is full, and then the descriptor is readable already.
  if (abort_fd_ >= 0 && ::write(abort_fd_, &one, sizeof one) < 0) return;
}

bool Link::fail(hvd_status status, int error_number) noexcept {
  if (status_ == HVD_OK) {
    status_ = status;
    error_number_ = error_number;
  }
  return false;
}

Outcome Link::failure(hvd_status status, int error_number) noexcept {
  fail(status, error_number);
  return Outcome::kFailed;
}

bool Link::is_usable() noexcept {
  if (aborted_.load(std::memory_order_acquire)) fail(HVD_ABORTED);
  return status_ == HVD_OK;
}

Outcome Link::take(Message* part) noexcept {
  if (zmq_.msg_recv(part->raw(), left_, kZmqDontWait) >= 0) return Outcome::kDone;
  const int error = zmq_.last_errno();
  if (error == EAGAIN || error == EINTR) return Outcome::kNotYet;
  return failure(HVD_SYSTEM, error);
}

Outcome Link::give(Message* part, int flags) noexcept {
  if (zmq_.msg_send(part->raw(), right_, kZmqDontWait | flags) >= 0) return Outcome::kDone;
  const int error = zmq_.last_errno();
  if (error == EAGAIN || error == EINTR) return Outcome::kNotYet;
  return failure(HVD_SYSTEM, error);
}

}  // namespace hvd::ring
