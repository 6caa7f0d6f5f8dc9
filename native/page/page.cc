#include "page/page.h"

#include <sys/mman.h>
#include <sys/stat.h>

namespace hvd::page {
namespace {

constexpr uint64_t kLine = 128;  // processors fetch cache lines in pairs

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

uint64_t ring_bytes(const Geometry& geometry) noexcept {
  return round_up(sizeof(Entry) * geometry.ring_length(), kLine);
}
uint64_t proposal_bytes(const Geometry& geometry) noexcept {
  return round_up(sizeof(Word<uint64_t>) * (1 + static_cast<uint64_t>(geometry.words())), kLine);
}
uint64_t rings_offset(const Geometry& geometry) noexcept { return sizeof(Header) + sizeof(Line) * geometry.size; }
uint64_t proposals_offset(const Geometry& geometry) noexcept {
  return rings_offset(geometry) + ring_bytes(geometry) * geometry.size;
}
uint64_t slots_offset(const Geometry& geometry) noexcept {
  return proposals_offset(geometry) + 2 * proposal_bytes(geometry) * geometry.size;
}

}  // namespace

bool Geometry::is_valid() const noexcept {
  return size >= 1 && size <= kMaxRanks && names >= 1 && names <= kMaxNames && (names & (names - 1)) == 0 &&
         slot_bytes >= 0 && slot_bytes % kLine == 0 && bytes() <= kMaxBytes;
}

uint64_t Geometry::bytes() const noexcept {
  return slots_offset(*this) + kSlots * static_cast<uint64_t>(slot_bytes) * size;
}

Page::~Page() { unmap(); }

void Page::unmap() noexcept {
  if (mapped_bytes_ != 0) munmap(base_, mapped_bytes_);
  mapped_bytes_ = 0;
}

hvd_status Page::map(int fd, const Geometry& geometry) noexcept {
  struct stat file;
  if (fstat(fd, &file) != 0) return HVD_SYSTEM;
  const uint64_t bytes = geometry.bytes();
  if (static_cast<uint64_t>(file.st_size) < bytes) return HVD_INVALID;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return HVD_SYSTEM;
  mapped_bytes_ = bytes;
  adopt(memory, geometry);
  // A forked child has no part in the agreement and must not keep the memory alive.
  return madvise(memory, bytes, MADV_DONTFORK) == 0 ? HVD_OK : HVD_SYSTEM;
}

void Page::adopt(void* memory, const Geometry& geometry) noexcept {
  base_ = static_cast<uint8_t*>(memory);
  geometry_ = geometry;
}

void Page::abort() noexcept {
  header().aborted.store(1);
  for (int32_t rank = 0; rank < geometry_.size; ++rank) {
    line(rank).bell.increment();
    line(rank).bell.wake();
  }
}

Entry& Page::entry(int32_t rank, uint64_t number) noexcept {
  uint8_t* ring = base_ + rings_offset(geometry_) + ring_bytes(geometry_) * rank;
  return reinterpret_cast<Entry*>(ring)[number & (geometry_.ring_length() - 1)];
}

Word<uint64_t>* Page::proposal(int32_t rank, uint64_t decision) noexcept {
  const uint64_t index = 2 * static_cast<uint64_t>(rank) + decision % 2;
  return reinterpret_cast<Word<uint64_t>*>(base_ + proposals_offset(geometry_) + proposal_bytes(geometry_) * index);
}

uint8_t* Page::slot(int32_t rank, uint64_t part) noexcept {
  const uint64_t index = kSlots * static_cast<uint64_t>(rank) + part % kSlots;
  return base_ + slots_offset(geometry_) + static_cast<uint64_t>(geometry_.slot_bytes) * index;
}

}  // namespace hvd::page
