#include "ring/link/sender.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "ring/link/pieces.h"

namespace hvd::ring {
namespace {

// Retransmissions of the same in a row, each after twice as long as the one before: at least 3 s.
constexpr int kMostUnanswered = 4;

}  // namespace

bool Sender::attach(int fd, uint64_t received, const hvd_ring_keys* keys) noexcept {
  if (received < acked_ || received > sent_) return false;
  if (cipher_.is_on() && !(cipher_.set_key(keys->frames, true) && ack_cipher_.set_key(keys->acks, false))) return false;
  release(received);
  written_ = received;
  offset_ = ack_bytes_ = 0;
  sealed_.clear();
  fd_ = fd;
  return true;
}

void Sender::push(Message* payload, uint32_t crc) noexcept {
  Slot& next = slot(sent_);
  const Kind kind = payload->is_borrowed() ? Kind::kHeld : Kind::kData;
  next.header = seal(kind, session_, sent_, static_cast<uint32_t>(payload->size()), crc);
  next.payload.take(payload);
  ++sent_;
  if (kind == Kind::kHeld) held_end_ = sent_;
}

void Sender::write() noexcept {
  while (can_write()) {
    const Slot& next = slot(written_);
    Pieces pieces;
    pieces.add(&next.header, sizeof next.header);
    if (cipher_.is_on()) {
      if (sealed_.size() == 0 && !seal_next()) return break_connection();
      pieces.add(sealed_.data(), sealed_.size());
    } else {
      pieces.add(next.payload.data(), next.payload.size());
    }
    const ssize_t bytes = pieces.write(fd_, offset_);
    if (bytes < 0) {
      if (would_block()) return;
      read_acks();  // what came before the connection broke
      return break_connection();
    }
    offset_ += static_cast<size_t>(bytes);
    if (offset_ < pieces.bytes()) continue;
    furthest_ = std::max(furthest_, ++written_);
    offset_ = 0;
    sealed_.clear();
  }
}

bool Sender::seal_next() noexcept {
  const Slot& next = slot(written_);
  return sealed_.allocate(next.payload.size() + Cipher::kTagBytes) &&
         cipher_.seal(next.header, next.payload.data(), next.payload.size(), sealed_.data());
}

void Sender::read_acks() noexcept {
  while (fd_ >= 0) {
    Pieces pieces;
    pieces.add(&ack_, sizeof ack_);
    pieces.add(ack_tag_, ack_cipher_.tag_bytes());
    const ssize_t bytes = pieces.read(fd_, ack_bytes_);
    if (bytes < 0 && would_block()) return;
    if (bytes <= 0) return break_connection();
    ack_bytes_ += static_cast<size_t>(bytes);
    if (ack_bytes_ < pieces.bytes()) continue;
    if (!is_good_ack()) return break_connection();
    ack_bytes_ = 0;
    release(ack_.sequence);
  }
}

bool Sender::is_good_ack() noexcept {
  return is_ack(ack_, session_) && ack_.sequence >= acked_ && ack_.sequence <= written_ &&
         (!ack_cipher_.is_on() || ack_cipher_.open(ack_, nullptr, 0, ack_tag_));
}

void Sender::break_if_unanswered() noexcept {
  tcp_info info = {};
  socklen_t bytes = sizeof info;
  // Unix sockets have no such information, and lose nothing.
  if (fd_ < 0 || ::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return;
  // A neighbour that is merely slow answers with its kernel, which counts as an answer to both.
  if (std::max(info.tcpi_retransmits, info.tcpi_probes) >= kMostUnanswered) break_connection();
}

void Sender::release(uint64_t acked) noexcept {
  for (; acked_ < acked; ++acked_) slot(acked_).payload.clear();
}

void Sender::clear() noexcept {
  release(sent_);
  written_ = sent_;
  offset_ = 0;
  sealed_.clear();
}

// Both the neighbour and the thread that polls this connection see its end.
void Sender::break_connection() noexcept {
  if (fd_ < 0) return;
  ::shutdown(fd_, SHUT_RDWR);
  fd_ = -1;
}

}  // namespace hvd::ring
