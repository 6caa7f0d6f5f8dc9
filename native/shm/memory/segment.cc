#include "shm/memory/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>

namespace hvd::shm {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLayoutVersion = 2;
constexpr uint64_t kMaxChunk = uint64_t{1} << 30;

struct Header {
  alignas(128) std::atomic<uint64_t> fingerprint;
};

uint64_t gates_bytes(const Geometry& geometry) noexcept { return sizeof(Gate) * kStages * geometry.size; }
uint64_t slots_offset(const Geometry& geometry) noexcept {
  return round_up(sizeof(Header) + gates_bytes(geometry), kPage);
}

// Never 0, so that an unused segment differs from every geometry. Valid fields do not overlap: 30, 16, 10 bits.
uint64_t fingerprint_of(const Geometry& geometry) noexcept {
  return kLayoutVersion << 58 ^ (geometry.chunk_bytes / kCacheLine) << 28 ^
         static_cast<uint64_t>(geometry.slots) << 12 ^ static_cast<uint64_t>(geometry.size);
}

}  // namespace

bool Geometry::is_valid() const noexcept {
  return size >= 1 && size <= kMaxRanks && slots >= 2 && slots <= 1024 && chunk_bytes >= kCacheLine &&
         chunk_bytes <= kMaxChunk && chunk_bytes % kCacheLine == 0;
}

uint64_t Geometry::segment_bytes() const noexcept {
  return round_up(slots_offset(*this) + slot_bytes() * slots * size, kPage);
}

Segment::~Segment() {
  if (mapped_bytes_ != 0) munmap(base_, mapped_bytes_);
}

hvd_status Segment::map(int fd, const Geometry& geometry) noexcept {
  struct stat file;
  if (fstat(fd, &file) != 0) return HVD_SYSTEM;
  const uint64_t bytes = geometry.segment_bytes();
  if (static_cast<uint64_t>(file.st_size) < bytes) return HVD_INVALID;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return HVD_SYSTEM;
  mapped_bytes_ = bytes;
  base_ = static_cast<uint8_t*>(memory);
  // A forked child has no part in the collectives and must not keep the memory alive.
  if (madvise(memory, bytes, MADV_DONTFORK) != 0) return HVD_SYSTEM;
  return adopt(memory, geometry);
}

hvd_status Segment::adopt(void* memory, const Geometry& geometry) noexcept {
  base_ = static_cast<uint8_t*>(memory);
  geometry_ = geometry;
  uint64_t found = 0;
  // Relaxed: the word stands for itself and orders nothing.
  reinterpret_cast<Header*>(base_)->fingerprint.compare_exchange_strong(found, fingerprint_of(geometry),
                                                                        std::memory_order_relaxed);
  return found == 0 || found == fingerprint_of(geometry) ? HVD_OK : HVD_INVALID;
}

Gate& Segment::gate(int32_t rank, Stage stage) noexcept {
  return reinterpret_cast<Gate*>(base_ + sizeof(Header))[rank * kStages + stage];
}

uint32_t& Segment::is_direct(int32_t rank, uint64_t chunk) noexcept {
  return *reinterpret_cast<uint32_t*>(slot(rank, chunk));
}

uint8_t* Segment::slot(int32_t rank, uint64_t chunk) noexcept {
  const uint64_t slot = static_cast<uint64_t>(rank) * geometry_.slots + chunk % geometry_.slots;
  return base_ + slots_offset(geometry_) + slot * geometry_.slot_bytes();
}

}  // namespace hvd::shm
