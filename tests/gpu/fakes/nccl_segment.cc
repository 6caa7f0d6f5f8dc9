#include "nccl_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

size_t Ring::push(const char* from, size_t nbytes) {
  uint64_t at = written.load(std::memory_order_relaxed);
  size_t room = kRing - (at - read.load(std::memory_order_acquire));
  size_t count = std::min({nbytes, room, kRing - at % kRing});
  std::memcpy(bytes + at % kRing, from, count);
  written.store(at + count, std::memory_order_release);
  return count;
}

size_t Ring::pull(char* to, size_t nbytes) {
  uint64_t at = read.load(std::memory_order_relaxed);
  size_t there = written.load(std::memory_order_acquire) - at;
  size_t count = std::min({nbytes, there, kRing - at % kRing});
  std::memcpy(to, bytes + at % kRing, count);
  read.store(at + count, std::memory_order_release);
  return count;
}

Segment* map_segment(const std::string& name) {
  int fd = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (fd < 0) return nullptr;
  void* found = MAP_FAILED;
  if (ftruncate(fd, sizeof(Segment)) == 0) {  // new pages are zeros, and old ones stay
    found = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  return found == MAP_FAILED ? nullptr : static_cast<Segment*>(found);
}

void unmap_segment(Segment* segment) { munmap(segment, sizeof(Segment)); }

void unlink_segment(const std::string& name) { shm_unlink(name.c_str()); }
