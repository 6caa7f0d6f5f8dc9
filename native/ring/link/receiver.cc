#include "ring/link/receiver.h"

#include <algorithm>

#include "kernels/crc32c.h"

namespace hvd::ring {
namespace {

// Bytes read at once and then check-summed: few enough to stay in the second-level cache.
constexpr uint64_t kBlockBytes = 128 << 10;

}  // namespace

bool Receiver::attach(int fd, const hvd_ring_keys* keys) noexcept {
  if (cipher_.is_on() && !(cipher_.set_key(keys->frames, false) && ack_cipher_.set_key(keys->acks, true))) return false;
  // The neighbour that reconnected has received the count of received frames, which acknowledges them.
  acked_ = received_;
  sender_waits_ = false;
  offset_ = crc_ = 0;
  fd_ = fd;
  return true;
}

Outcome Receiver::receive(uint64_t bytes, Message* payload, uint32_t* crc, char* into) noexcept {
  if (fd_ < 0) return Outcome::kNotYet;
  if (into != nullptr) {
    payload_.borrow(into, bytes);
  } else if (payload_.size() != bytes && !payload_.allocate(bytes)) {
    return Outcome::kFailed;
  }
  if (!read(bytes)) return Outcome::kNotYet;
  sender_waits_ |= header_.kind == Kind::kHeld;
  *crc = header_.payload_crc;
  payload->take(&payload_);
  ++received_;
  offset_ = crc_ = 0;
  corrupt_in_a_row_ = 0;
  if (received_ - acked_ >= ack_frames_) acknowledge();
  return Outcome::kDone;
}

// True once the whole frame is here and good.
bool Receiver::read(uint64_t bytes) noexcept {
  while (offset_ < sizeof header_ + bytes + cipher_.tag_bytes()) {
    const ssize_t bytes_read = next_pieces(bytes).read(fd_, offset_);
    if (bytes_read < 0 && would_block()) return false;
    if (bytes_read <= 0) return break_connection(), false;
    const bool had_header = offset_ >= sizeof header_;
    came(static_cast<uint64_t>(bytes_read));
    // Looked at before the rest is here: after a damaged header it might never come.
    const bool is_wrong = !had_header && offset_ >= sizeof header_ &&
                          !is_data(header_, session_, received_, static_cast<uint32_t>(bytes));
    if (is_wrong) return refuse_frame(), false;
  }
  if (!is_good(bytes)) return refuse_frame(), false;
  return true;
}

// The memory that the next call may fill.
Pieces Receiver::next_pieces(uint64_t bytes) noexcept {
  Pieces pieces;
  pieces.add(&header_, sizeof header_);
  // Nothing is written to the caller's memory before the header shows that this frame belongs there.
  if (payload_.is_borrowed() && offset_ < sizeof header_) return pieces;
  const uint64_t had = offset_ - std::min(offset_, sizeof header_);
  const uint64_t block = has_checksums_ ? std::min(bytes, (had / kBlockBytes + 1) * kBlockBytes) : bytes;
  pieces.add(payload_.data(), block);
  if (block == bytes) pieces.add(tag_, cipher_.tag_bytes());
  return pieces;
}

// Counts what was read, and check-sums what it has of the payload.
void Receiver::came(uint64_t bytes) noexcept {
  const uint64_t begin = std::max(offset_, sizeof header_) - sizeof header_;
  offset_ += bytes;
  const uint64_t end = std::max(offset_, sizeof header_) - sizeof header_;
  if (has_checksums_) crc_ = crc32c(crc_, payload_.data() + begin, end - begin);
}

// The payload of a frame that is here, whose header is good.
bool Receiver::is_good(uint64_t bytes) noexcept {
  if (cipher_.is_on() && !cipher_.open(header_, payload_.data(), bytes, tag_)) return false;
  return header_.payload_crc == crc_;
}

void Receiver::end_collective() noexcept {
  if (sender_waits_ && fd_ >= 0) acknowledge();
}

void Receiver::acknowledge() noexcept {
  const FrameHeader ack = seal(Kind::kAck, session_, received_, 0, 0);
  char tag[Cipher::kTagBytes];
  if (ack_cipher_.is_on() && !ack_cipher_.seal(ack, nullptr, 0, tag)) return break_connection();
  Pieces pieces;
  pieces.add(&ack, sizeof ack);
  pieces.add(tag, ack_cipher_.tag_bytes());
  const ssize_t bytes = pieces.write(fd_, 0);
  acked_ = received_;
  sender_waits_ = false;
  // A sender that does its part leaves a few of them unread at most, so there is room for one. If it has gone, what it
  // sent before can still be read.
  const bool is_full = bytes < 0 ? would_block() : bytes < static_cast<ssize_t>(pieces.bytes());
  if (is_full) break_connection();
}

void Receiver::refuse_frame() noexcept {
  ++corrupt_;
  ++corrupt_in_a_row_;
  break_connection();
}

// Both the neighbour and the thread that polls this connection see its end.
void Receiver::break_connection() noexcept {
  ::shutdown(fd_, SHUT_RDWR);
  fd_ = -1;
}

}  // namespace hvd::ring
