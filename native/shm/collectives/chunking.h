// The number of bytes of a vector that move at once.

#pragma once

#include <algorithm>
#include <cstdint>

#include "shm/memory/segment.h"

namespace hvd::shm {

// Chunks of equal length, so that the last is not a stub, and enough of them to keep the pipeline busy: a vector of
// fewer than kWanted slots is cut finer, though not below what a chunk's two synchronisations are worth.
struct Chunking {
  uint64_t bytes;  // of each chunk but the last; whole cache lines
  uint64_t count;

  Chunking(uint64_t total, uint64_t slot_bytes) noexcept {
    constexpr uint64_t kWanted = 4;
    constexpr uint64_t kShortest = 64 << 10;
    const uint64_t longest = std::clamp(total / kWanted, std::min(kShortest, slot_bytes), slot_bytes);
    const uint64_t wanted = (total + longest - 1) / longest;
    bytes = wanted == 0 ? kCacheLine : round_up((total + wanted - 1) / wanted, kCacheLine);
    count = (total + bytes - 1) / bytes;
  }
};

}  // namespace hvd::shm
