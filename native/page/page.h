// The page in which the ranks of one host agree, and its layout.
//
//   Header                     decisions and the abort flag
//   Line[size]                 of each rank: how far it is. Written by that rank, but for the bell.
//   ring[size]                 of each rank: the tensors that it has submitted, in order. Written by that rank.
//   proposal[size][2]          of each rank: the kind of decision that it proposed, then a bit for each name. Written
//                              by that rank.
//   slot[size][kSlots]         of each rank: parts of the bytes of the tensors that it carries. Written by that rank.
//
// A fresh page is all zeros, which is a valid state: nothing is submitted or decided. A peer's part is not trusted:
// every index that is read from it is checked.

#pragma once

#include <cstdint>

#include "hvdlite.h"
#include "page/word.h"

namespace hvd::page {

constexpr int32_t kMaxRanks = 1024;
constexpr int32_t kMaxNames = 1 << 16;
constexpr uint64_t kMaxBytes = 1 << 20;
constexpr uint64_t kSlots = 3;

struct Geometry {
  int32_t size;   // ranks
  int32_t names;  // a power of two
  int32_t slot_bytes = 0;

  bool is_valid() const noexcept;
  uint64_t bytes() const noexcept;
  int32_t words() const noexcept { return (names + 63) / 64; }
  // Before a slow rank reads on, another rank submits a name at most twice (agreement.cc).
  uint64_t ring_length() const noexcept { return uint64_t{2} * names; }
};

// What a decision is about.
enum class Kind : uint32_t {
  kNone,
  kTensors,  // all ranks have submitted these tensors
  kMessage,  // the next message of the root counts now
  kClose,    // from now on the root decides alone, until the page is opened again
};

struct Header {
  alignas(128) Word<uint64_t> decisions[2];  // the latest two: number + 1 and the winner, or 0
  alignas(128) Word<uint32_t> aborted;
};

constexpr uint64_t kTimes = 8;  // a power of two, above what `scan` of agreement.cc reads apart

struct Line {
  alignas(128) Word<uint64_t> submitted;  // entries of the ring
  Word<uint64_t> applied;                 // decisions
  Word<uint32_t> messages;                // that the root has sent
  Word<uint32_t> closings;                // the number of the closing that this rank wants, or an earlier one
  Word<uint64_t> parts;                   // the latest part that it has counted (carrier.h), plus 1
  alignas(64) Word<uint32_t> is_asleep;
  Word<uint32_t> bell;        // anybody rings it
  Word<uint32_t> is_watched;  // by the root: submits ring its bell
  Word<uint32_t> is_armed;    // the rank sleeps on its descriptors. Whoever clears it wakes the rank.
  // On the monotonic clock: the latest submit after so many decisions, modulo the length.
  alignas(64) Word<int64_t> submitted_at[kTimes];
};

using Entry = Word<uint32_t>;

class Page {
 public:
  Page() = default;
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page();

  // HVD_INVALID if the file is too small; HVD_SYSTEM if it cannot be mapped.
  hvd_status map(int fd, const Geometry& geometry) noexcept;

  void unmap() noexcept;

  // For tests: uses zeroed memory of `geometry.bytes()` that outlives this object.
  void adopt(void* memory, const Geometry& geometry) noexcept;

  // Ends all waits, of every rank.
  void abort() noexcept;

  const Geometry& geometry() const noexcept { return geometry_; }
  Header& header() noexcept { return *reinterpret_cast<Header*>(base_); }
  Line& line(int32_t rank) noexcept { return reinterpret_cast<Line*>(base_ + sizeof(Header))[rank]; }
  Entry& entry(int32_t rank, uint64_t number) noexcept;
  Word<uint64_t>& head(int32_t rank, uint64_t decision) noexcept { return *proposal(rank, decision); }
  Word<uint64_t>& bits(int32_t rank, uint64_t decision, int32_t word) noexcept {
    return proposal(rank, decision)[1 + word];
  }
  uint8_t* slot(int32_t rank, uint64_t part) noexcept;

 private:
  Word<uint64_t>* proposal(int32_t rank, uint64_t decision) noexcept;

  uint8_t* base_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  Geometry geometry_ = {};
};

}  // namespace hvd::page
