// A link whose neighbours are played by the test.

#pragma once

#include <poll.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/crc32c.h"
#include "tests/check.h"
#include "tests/ring_ranks.h"

namespace hvd::ring {

constexpr uint64_t kSession = 0x1122334455667788;
constexpr uint64_t kWindow = 4;
inline const std::string kPayload = "sixteen bytes...";

// The bytes of frame `sequence`, as a good neighbour sends them.
inline std::string frame(uint64_t sequence, const std::string& payload = kPayload, uint64_t session = kSession) {
  const uint32_t crc = hvd::crc32c(0, payload.data(), payload.size());
  const FrameHeader header = seal(Kind::kData, session, sequence, static_cast<uint32_t>(payload.size()), crc);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

constexpr int64_t kSpinNs = 20'000;

struct Neighbours {
  explicit Neighbours(std::chrono::milliseconds timeout = std::chrono::seconds(5), bool has_checksums = true,
                      size_t connections = 1)
      : left(connections),
        right(connections),
        link(kSession, kWindow, has_checksums, {kSpinNs, std::chrono::nanoseconds(timeout).count()}, nullptr,
             connections) {
    for (size_t i = 0; i < connections; ++i) {
      CHECK(link.attach_left(i, left[i].ends[0]));
      CHECK(link.attach_right(i, right[i].ends[0], 0));
    }
  }

  void come(const std::string& bytes, size_t connection = 0) {
    CHECK(send(left[connection].ends[1], bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }

  // The bytes that the right neighbour has received.
  std::string went(size_t connection = 0) {
    std::string bytes(1 << 20, 0);
    const ssize_t n = recv(right[connection].ends[1], bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(n > 0 ? n : 0);
    return bytes;
  }

  // The sequence number of the acknowledgement that the left neighbour has received; 0 for none.
  uint64_t acknowledged(size_t connection = 0) {
    FrameHeader ack;
    if (recv(left[connection].ends[1], &ack, sizeof ack, MSG_DONTWAIT) != sizeof ack) return 0;
    CHECK(is_ack(ack, kSession));
    return ack.sequence;
  }

  void acknowledge(uint64_t received, size_t connection = 0) {
    const FrameHeader ack = seal(Kind::kAck, kSession, received, 0, 0);
    CHECK(send(right[connection].ends[1], &ack, sizeof ack, 0) == sizeof ack);
  }

  bool receive(uint64_t bytes, std::string* got = nullptr) {
    Message payload;
    uint32_t crc;
    const bool done = link.receive(bytes, &payload, &crc);
    if (done && got != nullptr) got->assign(payload.data(), payload.size());
    return done;
  }

  void give(const std::string& bytes) {
    Message payload;
    CHECK(link.allocate(bytes.size(), &payload));
    std::memcpy(payload.data(), bytes.data(), bytes.size());
    CHECK(link.send(&payload, link.checksum(payload)));
  }

  void lend(std::string* bytes) {
    Message payload;
    payload.borrow(bytes->data(), bytes->size());
    CHECK(link.send(&payload, link.checksum(payload)));
  }

  bool left_is_cut(size_t connection = 0) {
    pollfd end = {left[connection].ends[1], POLLRDHUP, 0};
    return poll(&end, 1, 0) == 1;
  }

  void come_anew(SocketPair* wire, uint64_t expected, size_t connection = 0) {
    CHECK(link.detach_left(connection) == expected);
    CHECK(link.attach_left(connection, wire->ends[0]));
    std::swap(left[connection].ends, wire->ends);
  }

  // The right neighbour, which has `received` frames, is connected anew.
  void go_anew(SocketPair* wire, uint64_t received, size_t connection = 0) {
    CHECK(link.attach_right(connection, wire->ends[0], received));
    std::swap(right[connection].ends, wire->ends);
  }

  std::vector<SocketPair> left, right;  // by the number of the connection
  Link link;
};

}  // namespace hvd::ring
