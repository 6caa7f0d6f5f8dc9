// Sets how much freed memory the C library's allocator keeps.
//
// glibc returns free memory at the end of its heap to the system once it exceeds a threshold, and asks for it again a
// moment later, at the price of a page fault for each 4 KiB. The threshold grows with the arrays that a program frees,
// to 64 MiB at most.

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <climits>
#include <mutex>

#include "hvdlite.h"

#ifdef __GLIBC__

#include <malloc.h>

namespace {

// The value that glibc itself reaches in a program that frees long arrays, and the largest that it accepts. It has to
// be set together with the other threshold: setting either ends the growth of both, and blocks from 128 KiB on would be
// mapped and unmapped each time.
constexpr uint64_t kMmapThreshold = 32 << 20;

bool is_tuned_by_user() {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (getenv(name) != nullptr) return true;
  }
  const char* tunables = getenv("GLIBC_TUNABLES");
  return tunables != nullptr && strstr(tunables, "glibc.malloc.") != nullptr;
}

}  // namespace

void hvd_keep_freed(uint64_t bytes) {
  static std::mutex mutex;
  static uint64_t kept = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (bytes <= kept || is_tuned_by_user()) return;
  kept = bytes;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kMmapThreshold));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(std::min<uint64_t>(2 * kMmapThreshold + kept, INT_MAX)));
}

#else

void hvd_keep_freed(uint64_t) {}

#endif
