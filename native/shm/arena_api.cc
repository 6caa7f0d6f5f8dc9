// The C interface of the arena.

#include <cerrno>
#include <new>

#include "shm/memory/arena.h"

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

void hvd_arena_stop_sharing(hvd_arena* arena) { arena->stop_sharing(); }

hvd_status hvd_arena_make_private(hvd_arena* arena, int32_t fd, uint64_t offset, uint64_t bytes) {
  return arena->make_private(fd, offset, bytes);
}

hvd_status hvd_arena_after_fork(hvd_arena* arena, int32_t fd) { return arena->after_fork(fd); }

void hvd_arena_leave_peers(hvd_arena* arena) { arena->leave_peers(); }

void hvd_arena_close(hvd_arena* arena) { delete arena; }
