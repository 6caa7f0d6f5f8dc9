#include "shm/memory/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace hvd::shm {
namespace {

constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr uint64_t kPieceBytes = 64 << 20;  // so that only so much exists twice
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // since Linux 5.14
#endif
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1
#endif

// Maps a file at a multiple of the size of huge pages, without which they would be mapped page by page.
void* map_aligned(int fd, uint64_t bytes) noexcept {
  void* room =
      mmap(nullptr, bytes + HVD_ARENA_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  uint8_t* const begin = static_cast<uint8_t*>(room);
  const uint64_t before = -reinterpret_cast<uint64_t>(room) % HVD_ARENA_PAGE_BYTES,
                 after = HVD_ARENA_PAGE_BYTES - before;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, after);
  void* memory = mmap(begin + before, bytes, kProtection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (memory == MAP_FAILED) munmap(begin + before, bytes);
  return memory;
}

// A write that changes nothing, not even what another thread writes at the same time.
void touch(uint8_t* byte) noexcept { __atomic_fetch_or(byte, 0, __ATOMIC_RELAXED); }

hvd_status checked(int result) noexcept { return result == 0 ? HVD_OK : HVD_SYSTEM; }

}  // namespace

Arena::~Arena() {
  leave_peers();
  if (is_mapped_) munmap(own(), region_bytes_);
}

hvd_status Arena::map(int fd, int32_t own, int32_t count, uint64_t region_bytes) noexcept {
  const uint64_t bytes = region_bytes * static_cast<uint64_t>(count);
  void* memory = map_aligned(fd, bytes);
  if (memory == MAP_FAILED) return HVD_SYSTEM;
  adopt(memory, own, count, region_bytes);
  is_mapped_ = has_peers_ = true;
  // A core dump would have all ranks' memory, and a forked child must not reach the memory of its parent's peers.
  if (hvd_status status = checked(madvise(memory, bytes, MADV_DONTDUMP))) return status;
  if (hvd_status status = checked(madvise(memory, bytes, MADV_DONTFORK))) return status;
  return checked(madvise(this->own(), region_bytes, MADV_DOFORK));
}

void Arena::adopt(void* memory, int32_t own, int32_t count, uint64_t region_bytes) noexcept {
  base_ = static_cast<uint8_t*>(memory);
  own_ = own;
  count_ = count;
  region_bytes_ = region_bytes;
  is_shared_.store(true, std::memory_order_relaxed);  // nobody else has this object yet
}

bool Arena::has(const int32_t* regions, int32_t own, int32_t size) const noexcept {
  const auto is_one = [this](int32_t number) { return number >= 0 && number < count_; };
  return std::all_of(regions, regions + size, is_one) && regions[own] == own_;
}

// Asked for by name, huge pages do not depend on how the machine has set them up for shared memory, which is "never"
// where nobody changed it. A range without any page cannot be collapsed, so each gets its first.
void Arena::use_huge_pages(int fd, uint64_t offset, uint64_t bytes) noexcept {
  if (!is_shared()) return;
  uint8_t* const begin = own() + offset;
  for (uint64_t done = 0; done < bytes; done += HVD_ARENA_PAGE_BYTES) {
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, begin + done - base_, 1) != 0) return;
  }
  madvise(begin, bytes, MADV_COLLAPSE);
}

// The file's page is what both mappings have at the moment of the exchange, so no write of a thread of this process is
// lost: before, it goes to the file, and after, to the copy that it makes.
hvd_status Arena::make_private(int fd, uint64_t offset, uint64_t bytes) noexcept {
  for (const uint64_t end = offset + bytes; offset < end; offset += kPieceBytes) {
    if (hvd_status status = make_piece_private(fd, own() + offset, std::min(kPieceBytes, end - offset))) return status;
  }
  return HVD_OK;
}

hvd_status Arena::make_piece_private(int fd, uint8_t* begin, uint64_t bytes) noexcept {
  const off_t position = begin - base_;
  void* memory = mmap(begin, bytes, kProtection, MAP_PRIVATE | MAP_FIXED, fd, position);
  if (memory == MAP_FAILED) return HVD_SYSTEM;
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINVAL) return HVD_SYSTEM;
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (uint64_t done = 0; done < bytes; done += page) touch(begin + done);
  }
  return checked(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, position, static_cast<off_t>(bytes)));
}

hvd_status Arena::after_fork(int fd) noexcept {
  has_peers_ = false;
  if (!is_shared()) return HVD_OK;
  stop_sharing();
  const off_t position = own() - base_;
  void* memory = mmap(own(), region_bytes_, kProtection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, position);
  return memory == MAP_FAILED ? HVD_SYSTEM : HVD_OK;
}

hvd_status Arena::release(uint64_t offset, uint64_t bytes) noexcept {
  return checked(madvise(own() + offset, bytes, is_shared() ? MADV_REMOVE : MADV_DONTNEED));
}

void Arena::leave_peers() noexcept {
  if (!has_peers_) return;
  has_peers_ = false;
  uint8_t *const end = base_ + region_bytes_ * static_cast<uint64_t>(count_), *const own_end = own() + region_bytes_;
  if (own() > base_) munmap(base_, static_cast<uint64_t>(own() - base_));
  if (end > own_end) munmap(own_end, static_cast<uint64_t>(end - own_end));
}

}  // namespace hvd::shm

hvd_status hvd_arena_open(int32_t fd, int32_t own, int32_t count, uint64_t region_bytes, hvd_arena** out) {
  if (own < 0 || own >= count || region_bytes == 0) return HVD_INVALID;
  hvd_arena* arena = new (std::nothrow) hvd_arena;
  if (arena == nullptr) {
    errno = ENOMEM;
    return HVD_SYSTEM;
  }
  if (hvd_status status = arena->map(fd, own, count, region_bytes)) {
    const int cause = errno;
    delete arena;
    errno = cause;
    return status;
  }
  *out = arena;
  return HVD_OK;
}

uint64_t hvd_arena_address(hvd_arena* arena) { return reinterpret_cast<uint64_t>(arena->own()); }

void hvd_arena_use_huge_pages(hvd_arena* arena, int32_t fd, uint64_t offset, uint64_t bytes) {
  arena->use_huge_pages(fd, offset, bytes);
}

hvd_status hvd_arena_release(hvd_arena* arena, uint64_t offset, uint64_t bytes) {
  return arena->release(offset, bytes);
}

void hvd_arena_stop_sharing(hvd_arena* arena) {
  arena->stop_sharing();
  arena->set_private();
}

hvd_status hvd_arena_make_private(hvd_arena* arena, int32_t fd, uint64_t offset, uint64_t bytes) {
  return arena->make_private(fd, offset, bytes);
}

hvd_status hvd_arena_after_fork(hvd_arena* arena, int32_t fd) { return arena->after_fork(fd); }

void hvd_arena_leave_peers(hvd_arena* arena) { arena->leave_peers(); }

void hvd_arena_close(hvd_arena* arena) { delete arena; }
