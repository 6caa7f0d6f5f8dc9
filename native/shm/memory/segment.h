// The memory that the ranks of one host share, and its layout.
//
//   Header                      geometry (set by the first rank to map it, compared by the others)
//   Gate[size][kStages]         what each rank has done so far, written by that rank only
//   -- page boundary --
//   slot[size][slots]           of each rank: written by that rank only, read by all
//     is_direct [a cache line]  whether the rank has all of the batch in the arena; of a batch's first chunk only
//     inputs  [chunk_bytes]     what the rank contributes to a chunk
//     results [share_bytes]     the part of the chunk that the rank has reduced
//
// A fresh segment is all zeros, which is a valid state: no rank has done anything.

#pragma once

#include <atomic>
#include <cstdint>

#include "hvdlite.h"
#include "shm/memory/gate.h"

namespace hvd::shm {

constexpr int32_t kMaxRanks = 1024;
constexpr uint64_t kCacheLine = 64;  // also a multiple of every element size

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// The stages of a chunk on a rank, in order. `kFinished`: the rank will not read any slot of this chunk again.
enum Stage { kFilled, kReduced, kFinished, kStages };

struct Geometry {
  int32_t size;
  int32_t slots;
  uint64_t chunk_bytes;

  bool is_valid() const noexcept;
  // The largest part of a chunk that one rank reduces, in whole cache lines.
  uint64_t share_bytes(uint64_t bytes) const noexcept { return round_up((bytes + size - 1) / size, kCacheLine); }
  uint64_t slot_bytes() const noexcept { return kCacheLine + chunk_bytes + share_bytes(chunk_bytes); }
  uint64_t segment_bytes() const noexcept;
};

// A mapping of the segment. Owns the mapping, never the descriptor.
class Segment {
 public:
  Segment() = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  // HVD_INVALID if the file is too small or other ranks use another geometry; HVD_SYSTEM if it cannot be mapped.
  hvd_status map(int fd, const Geometry& geometry) noexcept;

  // For tests: uses zeroed, page-aligned memory of `segment_bytes` that outlives this object.
  hvd_status adopt(void* memory, const Geometry& geometry) noexcept;

  const Geometry& geometry() const noexcept { return geometry_; }
  Gate& gate(int32_t rank, Stage stage) noexcept;
  // Slots are reused in turn by consecutive chunks.
  uint32_t& is_direct(int32_t rank, uint64_t chunk) noexcept;
  uint8_t* inputs(int32_t rank, uint64_t chunk) noexcept { return slot(rank, chunk) + kCacheLine; }
  uint8_t* results(int32_t rank, uint64_t chunk) noexcept { return inputs(rank, chunk) + geometry_.chunk_bytes; }

 private:
  uint8_t* slot(int32_t rank, uint64_t chunk) noexcept;

  uint8_t* base_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  Geometry geometry_ = {};
};

}  // namespace hvd::shm
