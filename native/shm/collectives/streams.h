// Streams through the slots: the loop under all-gather and all-to-all.
//
// Every rank streams what it sends through its own slots, and all others copy their cells of the stream out. In step t
// a rank copies chunk t of its own stream in, which its peers may read at once, and then copies out what chunk t - 1 of
// all streams holds for it. A chunk number covers the same positions of all streams, up to the end of the longest. So a
// rank whose stream has ended goes on reading, and one that only sends may be as far ahead as it has slots. A rank
// waits for nobody in chunks in which it has nothing to send or to receive.
//
// Cost per rank: what it sends is read once and written to the slots once; what it receives is read from the slots,
// which stay in the cache, and written once. One wait per sender and chunk.

#pragma once

#include <algorithm>
#include <cstdint>

#include "shm/collectives/chunking.h"
#include "shm/collectives/span_cursor.h"
#include "shm/plane.h"

namespace hvd::shm {

// A part of a stream, and the spans that are read to fill it or written from it.
struct Cell {
  SpanCursor cursor;
  uint64_t begin;  // position in the stream
  uint64_t bytes;

  bool has_any_of(uint64_t from, uint64_t to) const noexcept {
    return std::max(from, begin) < std::min(to, begin + bytes);
  }

  // Calls visit(in, out, bytes, position in the stream) for each contiguous piece of what the cell has of [from, to).
  template <class Visit>
  void visit(uint64_t from, uint64_t to, Visit&& visit) noexcept {
    if (!has_any_of(from, to)) return;
    from = std::max(from, begin) - begin, to = std::min(to - begin, bytes);
    cursor.visit(from, to, [&](const uint8_t* in, uint8_t* out, uint64_t n, uint64_t position) {
      visit(in, out, n, begin + position);
    });
  }
};

struct Streams {
  Plane& plane;
  Cell outgoing[kMaxRanks];  // of this rank's stream
  Cell incoming[kMaxRanks];  // by sender: what this rank copies from that rank's stream
  uint64_t own_bytes;        // of this rank's stream
  uint64_t longest_bytes;    // of any stream

  explicit Streams(Plane& its_plane) noexcept : plane(its_plane), own_bytes(0), longest_bytes(0) {}

  hvd_status run() noexcept {
    const Chunking chunking(longest_bytes, plane.segment().geometry().chunk_bytes);
    const uint64_t first = plane.take_chunks(chunking.count);
    for (uint64_t step = 0; step <= chunking.count; ++step) {
      hvd_status status = HVD_OK;
      if (step < chunking.count && (status = fill(chunking, step, first + step))) return status;
      if (step > 0 && (status = drain(chunking, step - 1, first + step - 1))) return status;
    }
    return HVD_OK;
  }

  // The rank `distance` places to the right.
  int32_t right_of(int32_t rank, int32_t distance) const noexcept { return (rank + distance) % plane.size(); }

 private:
  hvd_status fill(const Chunking& chunking, uint64_t index, uint64_t number) noexcept {
    const uint64_t begin = index * chunking.bytes;
    if (begin >= own_bytes) return HVD_OK;
    if (hvd_status status = plane.wait_for_slot(number)) return status;
    uint8_t* slot = plane.segment().inputs(plane.rank(), number);
    for (int32_t distance = 0; distance < plane.size(); ++distance) {
      Cell& cell = outgoing[right_of(plane.rank(), distance)];
      cell.visit(begin, begin + chunking.bytes, [=](const uint8_t* in, uint8_t*, uint64_t n, uint64_t position) {
        plane.copy(slot + (position - begin), in, n);
      });
    }
    plane.pass(kFilled, number);
    return HVD_OK;
  }

  hvd_status drain(const Chunking& chunking, uint64_t index, uint64_t number) noexcept {
    const uint64_t begin = index * chunking.bytes, end = begin + chunking.bytes;
    for (int32_t distance = 0; distance < plane.size(); ++distance) {
      const int32_t sender = right_of(plane.rank(), distance);
      if (!incoming[sender].has_any_of(begin, end)) continue;
      if (hvd_status status = plane.wait(sender, kFilled, number)) return status;
      const uint8_t* slot = plane.segment().inputs(sender, number);
      incoming[sender].visit(begin, end, [=](const uint8_t*, uint8_t* out, uint64_t n, uint64_t position) {
        plane.copy(out, slot + (position - begin), n);
      });
    }
    plane.pass(kFinished, number);
    return HVD_OK;
  }
};

}  // namespace hvd::shm
