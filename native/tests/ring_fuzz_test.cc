// A million damaged frames and acknowledgements: none is ever taken for a good one. Truncated, with bits flipped, out
// of turn, of another kind, session or size, and noise; the same ones in every run. One in ten comes over a connection,
// which it ends; what was good before it is taken.

#include <array>
#include <cstring>
#include <random>
#include <string>

#include "kernels/crc32c.h"
#include "ring/link/receiver.h"
#include "ring/link/sender.h"
#include "tests/check.h"
#include "tests/ring_ranks.h"

namespace {

using namespace hvd::ring;

constexpr int kDamagedHeaders = 900'000;
constexpr int kDamagedFrames = 60'000;
constexpr int kDamagedAcks = 40'000;
constexpr uint64_t kSession = 0x1122334455667788;
constexpr uint64_t kWindow = 4;
constexpr uint64_t kPayloadBytes = 40;

class Fuzzer {
 public:
  explicit Fuzzer(uint32_t seed) : random_(seed) {}

  uint64_t below(uint64_t limit) { return random_() % limit; }

  // Damages `good` in one of several ways. Most are refused at once; the sealed ones have a valid checksum.
  std::string damaged(const std::string& good) {
    switch (below(4)) {
      case 0:
        return good.substr(0, below(good.size()));
      case 1:
        return flipped(good);
      case 2:
        return noise(1 + below(2 * good.size()));
      default:
        return resealed(good);
    }
  }

 private:
  std::string flipped(std::string bytes) {
    const uint64_t first = below(8 * bytes.size());
    bytes[first / 8] ^= static_cast<char>(1 << first % 8);
    for (uint64_t more = below(3); more > 0; --more) {
      const uint64_t bit = below(8 * bytes.size());
      if (bit != first) bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
    return bytes;
  }

  std::string noise(uint64_t size) {
    std::string bytes(size, 0);
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  // With one field of its header changed, and sealed again.
  std::string resealed(std::string bytes) {
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const uint32_t change = 1 + static_cast<uint32_t>(random_() % 0xffffffff);
    Kind kind = header.kind;
    switch (below(5)) {
      case 0:
        kind = kind == Kind::kAck ? Kind::kData : Kind::kAck;
        break;
      case 1:
        header.session ^= change;
        break;
      case 2:
        header.sequence += below(2) == 0 ? change : uint64_t{0} - (1 + below(3));
        break;
      case 3:
        header.bytes ^= change;
        break;
      default:
        header.payload_crc ^= change;
    }
    const FrameHeader sealed = seal(kind, header.session, header.sequence, header.bytes, header.payload_crc);
    std::memcpy(bytes.data(), &sealed, sizeof sealed);
    return bytes;
  }

  std::mt19937 random_;
};

std::string bytes_of(const FrameHeader& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof header);
}

std::string frame(uint64_t sequence) {
  const std::string payload(kPayloadBytes, static_cast<char>(sequence));
  const uint32_t crc = hvd::crc32c(0, payload.data(), payload.size());
  return bytes_of(seal(Kind::kData, kSession, sequence, kPayloadBytes, crc)) + payload;
}

std::string ack(uint64_t received) { return bytes_of(seal(Kind::kAck, kSession, received, 0, 0)); }

// Nothing comes after these bytes.
void come(int fd, const std::string& bytes) {
  CHECK(send(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  CHECK(shutdown(fd, SHUT_WR) == 0);
}

void test_no_damaged_header_is_good() {
  Fuzzer fuzzer(0);
  for (int turn = 0; turn < kDamagedHeaders; ++turn) {
    const uint64_t next = fuzzer.below(1000);
    const FrameHeader good = seal(turn % 2 == 0 ? Kind::kData : Kind::kAck, kSession, next, 0, 0);
    std::string bytes = fuzzer.damaged(bytes_of(good));
    bytes.resize(sizeof good);
    if (bytes == bytes_of(good)) continue;  // nothing but zeros was cut off
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const bool has_other_checksum = header.payload_crc != good.payload_crc;  // which is compared with the payload
    CHECK(!is_data(header, kSession, next, 0) || has_other_checksum || good.kind == Kind::kAck);
    CHECK(!is_ack(header, kSession) || header.sequence != next || good.kind == Kind::kData);
  }
}

void test_no_damaged_frame_is_received() {
  Fuzzer fuzzer(1);
  Receiver receiver(kSession, kWindow, true, nullptr);
  uint64_t next = 0;
  for (int turn = 0; turn < kDamagedFrames; ++turn) {
    const SocketPair wire;
    CHECK(receiver.attach(wire.ends[0], nullptr));
    std::string bytes;
    const uint64_t good = fuzzer.below(3);
    for (uint64_t i = 0; i < good; ++i) bytes += frame(next + i);
    come(wire.ends[1], bytes + fuzzer.damaged(frame(next + good)));
    Message payload;
    uint32_t crc;
    for (uint64_t i = 0; i < good; ++i, ++next) {
      CHECK(receiver.receive(kPayloadBytes, &payload, &crc) == Outcome::kDone);
      CHECK(payload.data()[0] == static_cast<char>(next) && payload.data()[kPayloadBytes - 1] == payload.data()[0]);
    }
    CHECK(receiver.receive(kPayloadBytes, &payload, &crc) == Outcome::kNotYet);
    CHECK(receiver.received() == next && receiver.fd() == -1);
  }
}

void test_no_damaged_acknowledgement_is_believed() {
  Fuzzer fuzzer(2);
  Sender sender(kSession, 2 * kWindow, nullptr);
  uint64_t sent = 0, acked = 0;
  for (int turn = 0; turn < kDamagedAcks; ++turn) {
    const SocketPair wire;
    CHECK(!sender.attach(wire.ends[0], sent + 1 + fuzzer.below(1000), nullptr));
    CHECK(sender.attach(wire.ends[0], acked, nullptr));
    for (; sender.has_room(); ++sent) {
      Message payload;
      sender.push(&payload, 0);
    }
    sender.write();
    const uint64_t good = fuzzer.below(sent - acked + 1);
    acked += good;
    // Of less than before, or of what has not been sent, which is wrong however it is sealed.
    const uint64_t wrong = fuzzer.below(2) == 0 ? sent + 4 + fuzzer.below(9) : acked - 1;
    come(wire.ends[1],
         (good > 0 ? ack(acked) : "") + (fuzzer.below(5) == 0 ? ack(wrong) : fuzzer.damaged(ack(sent + 4))));
    sender.read_acks();
    CHECK(sender.progress() == sent + acked && sender.fd() == -1);
  }
}

}  // namespace

int main() {
  test_no_damaged_header_is_good();
  test_no_damaged_frame_is_received();
  test_no_damaged_acknowledgement_is_believed();
}
