// The shared memory of a communicator: a ring of bytes from each rank to each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

constexpr int kMaxRanks = 8;
constexpr size_t kRing = size_t{16} << 10;

struct Ring {
  std::atomic<uint64_t> written, read;
  char bytes[kRing];

  // Takes up to `nbytes`; returns how many.
  size_t push(const char* from, size_t nbytes);
  size_t pull(char* to, size_t nbytes);
};

struct Segment {
  std::atomic<int> joined;
  std::atomic<int> size;                  // what the first to come says; others must say the same
  std::atomic<uint64_t> gpus[kMaxRanks];  // and the host's, as NCCL identifies it
  Ring rings[kMaxRanks][kMaxRanks];       // from, to
};

// Maps the segment `name`, which the first caller makes. Null if there is none.
Segment* map_segment(const std::string& name);
void unmap_segment(Segment* segment);
void unlink_segment(const std::string& name);
