// The ranks of a ring as threads, over socket pairs, which a test may cut and replace at any time.

#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ring/ring.h"
#include "tests/check.h"

namespace hvd::ring {

constexpr uint64_t kChunkBytes = 4096;

struct SocketPair {
  SocketPair() { CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0); }
  ~SocketPair() {
    close(ends[0]);
    close(ends[1]);
  }
  int ends[2];
};

class Ranks {
 public:
  explicit Ranks(int32_t size, uint64_t window = 3, uint64_t chunk_bytes = kChunkBytes, size_t connections = 1)
      : connections_(connections), wires_(size * connections) {
    for (int32_t rank = 0; rank < size; ++rank) {
      // One rank sleeps at once and the next one spins first, so each kind waits for the other.
      const Patience patience{rank % 2 * 50'000, 20'000'000'000};
      rings_.emplace_back(
          new Ring{rank, size, chunk_bytes, window, {42, window, true, patience, nullptr, connections}});
    }
    for (int32_t rank = 0; rank < size; ++rank) {
      for (size_t connection = 0; connection < connections; ++connection) connect(rank, connection);
    }
  }

  Ring& operator[](int32_t rank) { return *rings_[rank]; }

  // Makes this connection from the rank to its right neighbour, in place of the one that there is.
  void connect(int32_t rank, size_t connection) {
    Link &from = rings_[rank]->link, &to = rings_[(rank + 1) % rings_.size()]->link;
    auto fresh = std::make_unique<SocketPair>();
    const uint64_t received = to.detach_left(connection);
    CHECK(from.attach_right(connection, fresh->ends[0], received));
    to.attach_left(connection, fresh->ends[1]);
    wire(rank, connection) = std::move(fresh);
  }

  // Ends this connection from the rank to its right neighbour, with whatever is in it.
  void cut(int32_t rank, size_t connection) { shutdown(wire(rank, connection)->ends[0], SHUT_RDWR); }

  void run(const std::function<void(Ring&)>& work) {
    std::vector<std::thread> threads;
    for (auto& ring : rings_) threads.emplace_back([&work, &ring] { work(*ring); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::unique_ptr<SocketPair>& wire(int32_t rank, size_t connection) {
    return wires_[rank * connections_ + connection];
  }

  const size_t connections_;
  std::vector<std::unique_ptr<SocketPair>> wires_;
  std::vector<std::unique_ptr<Ring>> rings_;
};

inline hvd_span span_of(const void* in, void* out, uint64_t bytes) {
  return {reinterpret_cast<uint64_t>(in), reinterpret_cast<uint64_t>(out), bytes};
}

}  // namespace hvd::ring
