// Reading and writing several pieces of memory as one run of bytes of a stream socket.

#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>

namespace hvd::ring {

// True if the call that just returned -1 only found nothing to do.
inline bool would_block() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK; }

class Pieces {
 public:
  void add(const void* data, size_t bytes) noexcept {
    pieces_[count_++] = {const_cast<void*>(data), bytes};
    bytes_ += bytes;
  }

  size_t bytes() const noexcept { return bytes_; }

  // Write or read from byte `offset` on, without waiting. Return how many bytes moved; -1 with errno: none.
  ssize_t write(int fd, size_t offset) noexcept {
    return move([fd](const msghdr* message) { return ::sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL); }, offset);
  }
  ssize_t read(int fd, size_t offset) noexcept {
    return move([fd](msghdr* message) { return ::recvmsg(fd, message, MSG_DONTWAIT); }, offset);
  }

 private:
  template <class Call>
  ssize_t move(Call call, size_t offset) noexcept {
    iovec rest[kMost];
    msghdr message = {};
    message.msg_iov = rest;
    for (size_t i = 0; i < count_; ++i) {
      const size_t skip = std::min(offset, pieces_[i].iov_len);
      offset -= skip;
      if (skip == pieces_[i].iov_len) continue;
      rest[message.msg_iovlen++] = {static_cast<char*>(pieces_[i].iov_base) + skip, pieces_[i].iov_len - skip};
    }
    ssize_t moved;
    do moved = call(&message);
    while (moved < 0 && errno == EINTR);
    return moved;
  }

  static constexpr size_t kMost = 3;
  iovec pieces_[kMost];
  size_t count_ = 0;
  size_t bytes_ = 0;
};

}  // namespace hvd::ring
