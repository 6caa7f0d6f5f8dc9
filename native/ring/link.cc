#include "ring/link.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/crc32c.h"

namespace hvd::ring {
namespace {

using Clock = std::chrono::steady_clock;

// A link that damages the same frame this often will not get it across.
constexpr uint64_t kMostCorruptInARow = 20;

constexpr std::chrono::milliseconds kLookForAnswersEvery{1000};

}  // namespace

// The neighbour acknowledges at least every `window` frames, so one that has received all but `window` frames never
// keeps this rank from sending.
Link::Link(uint64_t session, uint64_t window, bool has_checksums, std::chrono::nanoseconds progress_timeout,
           const Crypto* crypto)
    : has_checksums_(has_checksums && crypto == nullptr),
      progress_timeout_(progress_timeout),
      sender_(session, 2 * window, crypto),
      receiver_(session, window, has_checksums_, crypto),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
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
  if (!sender_.has_room()) sender_.read_acks();
  if (!sender_.has_room()) return sender_.write(), Outcome::kNotYet;
  sender_.push(payload, crc);
  sender_.write();
  return Outcome::kDone;
}

Outcome Link::try_receive(uint64_t bytes, Message* payload, uint32_t* crc, char* into) {
  Lock lock(mutex_);
  if (!enter()) return Outcome::kFailed;
  const Outcome outcome = receiver_.receive(bytes, payload, crc, into);
  if (outcome == Outcome::kFailed) fail(HVD_SYSTEM, ENOMEM);
  if (receiver_.corrupt_in_a_row() < kMostCorruptInARow) return outcome;
  fail(HVD_CORRUPT);
  return Outcome::kFailed;
}

bool Link::wait(bool until_readable, bool until_writable) {
  Lock lock(mutex_);
  return enter() && sleep(until_readable ? POLLIN : 0, until_writable ? POLLIN : 0);
}

bool Link::allocate(uint64_t bytes, Message* payload) {
  if (payload->allocate(bytes)) return true;
  Lock lock(mutex_);
  return fail(HVD_SYSTEM, ENOMEM);
}

bool Link::settle() {
  Lock lock(mutex_);
  if (!enter()) return false;
  receiver_.end_collective();
  for (;;) {
    sender_.write();
    if (sender_.needs_caller_memory()) sender_.read_acks();
    if (sender_.is_written() && !sender_.needs_caller_memory()) break;
    if (!sleep(0, POLLIN)) return false;
  }
  is_in_collective_ = false;
  return true;
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
  return receiver_.corrupt();
}

uint64_t Link::detach_left() noexcept {
  Lock lock(mutex_);
  receiver_.detach();
  return receiver_.received();
}

void Link::detach_right() noexcept {
  Lock lock(mutex_);
  sender_.read_acks();  // the last ones, which a neighbour that has left cannot tell again
  sender_.detach();
}

bool Link::attach_left(int fd, const hvd_ring_keys* keys) noexcept {
  Lock lock(mutex_);
  if (!receiver_.attach(fd, keys)) return false;
  wake();
  return true;
}

bool Link::attach_right(int fd, uint64_t received, const hvd_ring_keys* keys) noexcept {
  Lock lock(mutex_);
  if (!sender_.attach(fd, received, keys)) return false;
  sender_.write();
  wake();
  return true;
}

bool Link::flush() noexcept {
  Lock lock(mutex_);
  // A collective that runs sees to it itself.
  if (is_in_collective_) return false;
  sender_.write();
  return sender_.can_write();
}

void Link::abort() noexcept {
  // The flag is set before the wake-up, so whoever it wakes sees it.
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
  if (!is_in_collective_) time_limit_ = Clock::now() + progress_timeout_;
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
    sender_.clear();
  }
  return false;
}

// Waits for these events, or whatever else lets frames move. Frames that are still to be written go on meanwhile. The
// caller holds the mutex, and holds it again afterwards.
bool Link::sleep(short left_events, short right_events) {
  if (sender_.can_write()) right_events |= POLLOUT;
  const uint64_t progress = sender_.progress() + receiver_.received();
  const Clock::time_point now = Clock::now();
  if (progress != progress_) time_limit_ = now + progress_timeout_;
  progress_ = progress;
  if (now >= time_limit_) return fail(HVD_TIMED_OUT);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(time_limit_ - now);

  // poll passes over descriptors below zero: connections that are not there, or of no interest.
  pollfd fds[] = {{wake_fd_, POLLIN, 0},
                  {left_events != 0 ? receiver_.fd() : -1, left_events, 0},
                  {right_events != 0 ? sender_.fd() : -1, right_events, 0}};
  mutex_.unlock();
  const int ready = ::poll(fds, 3, static_cast<int>(std::min(rest, kLookForAnswersEvery).count()) + 1);
  const int error = errno;
  mutex_.lock();
  if (ready < 0 && error != EINTR) return fail(HVD_SYSTEM, error);
  if (ready == 0) sender_.break_if_unanswered();
  uint64_t wakes;
  if (fds[0].revents != 0 && ::read(wake_fd_, &wakes, sizeof wakes) < 0) return fail(HVD_SYSTEM, errno);
  if (fds[2].revents & (POLLIN | POLLHUP | POLLERR)) sender_.read_acks();
  if (fds[2].revents & POLLOUT) sender_.write();
  return is_usable();
}

}  // namespace hvd::ring
