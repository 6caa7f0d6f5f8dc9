#include "ring/link/link.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/crc32c.h"

namespace hvd::ring {
namespace {

// A link that damages the same frame this often will not get it across.
constexpr uint64_t kMostCorruptInARow = 20;

constexpr int64_t kMsNs = 1'000'000;
constexpr int64_t kLookForAnswersEveryMs = 1000;

}  // namespace

// Of `window` frames in a row at most `share` go over the same connection. The neighbour acknowledges at least every
// `share` frames of each, so one that has received all but `window` frames lacks the acknowledgements of less than
// twice `share` on any connection, and never keeps this rank from sending.
Link::Link(uint64_t session, uint64_t window, bool has_checksums, const Patience& patience, const Crypto* crypto,
           size_t connections)
    : has_checksums_(has_checksums && crypto == nullptr),
      patience_(patience),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const uint64_t share = window / connections + (window % connections != 0);
  for (size_t i = 0; i < connections; ++i) {
    senders_.emplace_back(session, 2 * share, crypto);
    receivers_.emplace_back(session, share, has_checksums_, crypto);
  }
  if (wake_fd_ < 0) fail(HVD_SYSTEM, errno);
}

Link::~Link() {
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

uint32_t Link::checksum(uint32_t crc, const void* data, uint64_t bytes) const noexcept {
  return has_checksums_ ? crc32c(crc, data, bytes) : 0;
}

bool Link::send(Message* payload, uint32_t crc) {
  for (;;) {
    const Outcome outcome = try_send(payload, crc);
    if (outcome != Outcome::kNotYet) return outcome == Outcome::kDone;
    if (!wait(false, true)) return false;
  }
}

bool Link::receive(uint64_t bytes, Message* payload, uint32_t* crc, char* into) {
  for (;;) {
    const Outcome outcome = try_receive(bytes, payload, crc, into);
    if (outcome != Outcome::kNotYet) return outcome == Outcome::kDone;
    if (!wait(true, false)) return false;
  }
}

Outcome Link::try_send(Message* payload, uint32_t crc) {
  Lock lock(mutex_);
  if (!enter()) return Outcome::kFailed;
  Sender& sender = senders_[outgoing_];
  if (!sender.has_room()) sender.read_acks();
  if (!sender.has_room()) return sender.write(), Outcome::kNotYet;
  sender.push(payload, crc);
  sender.write();
  outgoing_ = (outgoing_ + 1) % senders_.size();
  return Outcome::kDone;
}

Outcome Link::try_receive(uint64_t bytes, Message* payload, uint32_t* crc, char* into) {
  Lock lock(mutex_);
  if (!enter()) return Outcome::kFailed;
  Receiver& receiver = receivers_[incoming_];
  const Outcome outcome = receiver.receive(bytes, payload, crc, into);
  if (outcome == Outcome::kDone) incoming_ = (incoming_ + 1) % receivers_.size();
  if (outcome == Outcome::kFailed) fail(HVD_SYSTEM, ENOMEM);
  if (receiver.corrupt_in_a_row() < kMostCorruptInARow) return outcome;
  fail(HVD_CORRUPT);
  return Outcome::kFailed;
}

bool Link::wait(bool until_readable, bool until_writable) {
  Lock lock(mutex_);
  return enter() && sleep(until_readable, until_writable);
}

bool Link::allocate(uint64_t bytes, Message* payload) {
  if (payload->allocate(bytes)) return true;
  Lock lock(mutex_);
  return fail(HVD_SYSTEM, ENOMEM);
}

bool Link::finish() {
  Lock lock(mutex_);
  if (!enter()) return false;
  for (Receiver& receiver : receivers_) receiver.end_collective();
  while (!is_finished()) {
    if (!sleep(false, true)) return false;
  }
  is_in_collective_ = false;
  return true;
}

bool Link::is_finished() noexcept {
  bool is_finished = true;
  for (Sender& sender : senders_) {
    sender.write();
    if (sender.needs_caller_memory()) sender.read_acks();
    is_finished &= sender.is_written() && !sender.needs_caller_memory();
  }
  return is_finished;
}

hvd_status Link::status() noexcept {
  Lock lock(mutex_);
  return status_;
}

int Link::error_number() noexcept {
  Lock lock(mutex_);
  return error_number_;
}

uint64_t Link::corrupt() noexcept {
  Lock lock(mutex_);
  uint64_t corrupt = 0;
  for (const Receiver& receiver : receivers_) corrupt += receiver.corrupt();
  return corrupt;
}

uint64_t Link::detach_left(size_t connection) noexcept {
  Lock lock(mutex_);
  receivers_[connection].detach();
  return receivers_[connection].received();
}

void Link::detach_right(size_t connection) noexcept {
  Lock lock(mutex_);
  senders_[connection].read_acks();  // the last ones, which a neighbour that has left cannot send again
  senders_[connection].detach();
}

bool Link::attach_left(size_t connection, int fd, const hvd_ring_keys* keys) noexcept {
  Lock lock(mutex_);
  if (!receivers_[connection].attach(fd, keys)) return false;
  wake();
  return true;
}

bool Link::attach_right(size_t connection, int fd, uint64_t received, const hvd_ring_keys* keys) noexcept {
  Lock lock(mutex_);
  if (!senders_[connection].attach(fd, received, keys)) return false;
  senders_[connection].write();
  wake();
  return true;
}

bool Link::flush(size_t connection) noexcept {
  Lock lock(mutex_);
  // A collective that runs sees to it itself.
  if (is_in_collective_) return false;
  senders_[connection].write();
  return senders_[connection].can_write();
}

void Link::abort() noexcept {
  // The flag is set before the wake-up, so the thread that wakes sees it.
  aborted_.store(true, std::memory_order_release);
  wake();
}

void Link::wake() noexcept {
  const uint64_t one = 1;
  // A write can only fail because the counter is full, and then the descriptor is readable already.
  if (::write(wake_fd_, &one, sizeof one) < 0) return;
}

// The first call of a collective sets its time limit.
bool Link::enter() noexcept {
  if (!is_usable()) return false;
  if (!is_in_collective_) time_limit_ns_ = monotonic_ns() + patience_.timeout_ns;
  is_in_collective_ = true;
  return true;
}

bool Link::is_usable() noexcept {
  if (aborted_.load(std::memory_order_acquire)) fail(HVD_ABORTED);
  return status_ == HVD_OK;
}

bool Link::fail(hvd_status status, int error_number) noexcept {
  if (status_ == HVD_OK) {
    status_ = status;
    error_number_ = error_number;
    for (Sender& sender : senders_) sender.clear();
  }
  return false;
}

// Grows with every frame that moves on any connection.
uint64_t Link::progress() const noexcept {
  uint64_t progress = 0;
  for (const Sender& sender : senders_) progress += sender.progress();
  for (const Receiver& receiver : receivers_) progress += receiver.received();
  return progress;
}

// Waits until the next frame can be read or acknowledgements have come, if asked for, or whatever else lets frames
// move. Frames that are still to be written go on meanwhile, over all connections. The caller holds the mutex, and
// holds it again afterwards.
bool Link::sleep(bool until_readable, bool until_acknowledged) {
  const uint64_t moved = progress();
  const int64_t now_ns = monotonic_ns();
  if (moved != progress_) time_limit_ns_ = now_ns + patience_.timeout_ns;
  progress_ = moved;
  if (now_ns >= time_limit_ns_) return fail(HVD_TIMED_OUT);

  // poll passes over descriptors below zero: connections that are not there, or of no interest.
  pollfd fds[2 + kMostConnections];
  fds[0] = {wake_fd_, POLLIN, 0};
  fds[1] = {until_readable ? receivers_[incoming_].fd() : -1, POLLIN, 0};
  pollfd* const outgoing = fds + 2;
  for (size_t i = 0; i < senders_.size(); ++i) {
    const int events = (until_acknowledged ? POLLIN : 0) | (senders_[i].can_write() ? POLLOUT : 0);
    outgoing[i] = {events != 0 ? senders_[i].fd() : -1, static_cast<short>(events), 0};
  }
  const nfds_t count = 2 + senders_.size();
  mutex_.unlock();
  const int64_t timeout_ms = std::min((time_limit_ns_ - now_ns) / kMsNs, kLookForAnswersEveryMs) + 1;
  const int ready = poll_spinning(&patience_.spin, fds, count, static_cast<int>(timeout_ms));
  const int error = errno;
  mutex_.lock();
  if (ready < 0 && error != EINTR) return fail(HVD_SYSTEM, error);
  uint64_t wakes;
  if (fds[0].revents != 0 && ::read(wake_fd_, &wakes, sizeof wakes) < 0) return fail(HVD_SYSTEM, errno);
  for (size_t i = 0; i < senders_.size(); ++i) {
    if (ready == 0) senders_[i].break_if_unanswered();
    if (outgoing[i].revents & (POLLIN | POLLHUP | POLLERR)) senders_[i].read_acks();
    if (outgoing[i].revents & POLLOUT) senders_[i].write();
  }
  return is_usable();
}

}  // namespace hvd::ring
