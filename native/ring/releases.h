// Counts the frames that libzmq still reads from the caller's memory.

#ifndef HVDLITE_RING_RELEASES_H_
#define HVDLITE_RING_RELEASES_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace hvd::ring {

class Releases {
 public:
  void expect_one() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++outstanding_;
  }

  // What libzmq calls, from its own thread, when it no longer uses a borrowed payload.
  static void on_release(void* /*data*/, void* releases) {
    Releases* self = static_cast<Releases*>(releases);
    // Notified under the lock: once the count is seen to be zero, this object may be gone.
    std::lock_guard<std::mutex> lock(self->mutex_);
    ++self->released_;
    if (--self->outstanding_ == 0) self->changed_.notify_all();
  }

  // Ends the present and all later calls of `wait`. Any thread.
  void interrupt() {
    std::lock_guard<std::mutex> lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }

  // Waits until nothing is outstanding. False if interrupted, or if nothing was released for `timeout`.
  bool wait(std::chrono::nanoseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    uint64_t seen;
    do {
      seen = released_;
      if (changed_.wait_for(lock, timeout, [this] { return outstanding_ == 0 || interrupted_; })) {
        return !interrupted_;
      }
    } while (released_ != seen);
    return false;
  }

  // Like `wait`, but an interruption does not end it.
  bool drain(std::chrono::nanoseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return outstanding_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t outstanding_ = 0;
  uint64_t released_ = 0;
  bool interrupted_ = false;
};

}  // namespace hvd::ring

#endif  // HVDLITE_RING_RELEASES_H_
