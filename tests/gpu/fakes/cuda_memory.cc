// Memory of the GPUs, and of the host.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "cuda_state.h"

namespace {

int device_holding(CUdeviceptr address, size_t nbytes) {
  for (int index = 0; index < kDevices; index++) {
    auto seen = reinterpret_cast<CUdeviceptr>(state.devices[index].seen);
    if (seen && address >= seen && address + nbytes <= seen + kBytes) return index;
  }
  return -1;
}

CUdeviceptr allocate(int index, size_t nbytes) {  // first fit; the mutex is held
  Device& device = state.devices[index];
  size_t offset = 0;
  for (auto [begin, length] : device.used) {
    if (offset + nbytes <= begin) break;
    offset = (begin + length + kLine - 1) / kLine * kLine;
  }
  if (offset + nbytes > kBytes) return 0;
  device.used[offset] = nbytes;
  std::memset(device.own + offset, kFresh, nbytes);
  return reinterpret_cast<CUdeviceptr>(device.seen + offset);
}

// The address that a stream may use: of the device, of pinned memory, or, as CUDA also takes it, of any of the host.
void* usable(CUdeviceptr address, size_t nbytes) {
  void* own = fake_own(address, nbytes);
  return own ? own : reinterpret_cast<void*>(address);
}

}  // namespace

void make(Device& device) {
  int fd = memfd_create("fake-gpu", 0);
  if (fd < 0 || ftruncate(fd, kBytes)) std::abort();
  device.seen = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED, fd, 0));
  device.own = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
}

void* fake_own(CUdeviceptr address, size_t nbytes) {
  std::lock_guard lock(state.mutex);
  int index = device_holding(address, nbytes);
  if (index < 0) return nullptr;
  Device& device = state.devices[index];
  size_t offset = address - reinterpret_cast<CUdeviceptr>(device.seen);
  auto after = device.used.upper_bound(offset);
  if (after == device.used.begin()) return nullptr;
  auto [begin, length] = *std::prev(after);
  return offset + nbytes <= begin + length ? device.own + offset : nullptr;
}

extern "C" {

bool fake_read(CUdeviceptr address, void* to, size_t nbytes) {
  void* own = fake_own(address, nbytes);
  if (own) std::memcpy(to, own, nbytes);
  return own != nullptr;
}

bool fake_write(CUdeviceptr address, const void* from, size_t nbytes) {
  void* own = fake_own(address, nbytes);
  if (own) std::memcpy(own, from, nbytes);
  return own != nullptr;
}

CUdeviceptr fake_allocate(int device, size_t nbytes) {
  std::lock_guard lock(state.mutex);
  return allocate(device, nbytes);
}

size_t fake_memory(int device, CUdeviceptr* seen, void** own) {
  *seen = reinterpret_cast<CUdeviceptr>(state.devices[device].seen);
  *own = state.devices[device].own;
  return kBytes;
}

size_t fake_extents(int device, CUdeviceptr* begins, uint64_t* lengths, size_t room) {
  std::lock_guard lock(state.mutex);
  size_t count = 0;
  for (auto [offset, length] : state.devices[device].used) {
    if (count == room) break;
    begins[count] = reinterpret_cast<CUdeviceptr>(state.devices[device].seen) + offset;
    lengths[count++] = length;
  }
  return count;
}

void fake_free(CUdeviceptr address) {
  std::lock_guard lock(state.mutex);
  int index = device_holding(address, 1);
  if (index < 0) std::abort();
  Device& device = state.devices[index];
  auto found = device.used.find(address - reinterpret_cast<CUdeviceptr>(device.seen));
  if (found == device.used.end()) std::abort();
  std::memset(device.own + found->first, kFreed, found->second);
  device.used.erase(found);
}

int fake_allocations() {
  std::lock_guard lock(state.mutex);
  size_t count = state.pinned.size();
  for (auto& device : state.devices) count += device.used.size();
  return static_cast<int>(count);
}

int cuPointerGetAttribute(void* data, int attribute, CUdeviceptr address) {
  std::lock_guard lock(state.mutex);
  int index = device_holding(address, 1);
  bool is_pinned = state.pinned.count(reinterpret_cast<void*>(address)) > 0;
  if (index < 0 && !is_pinned) return kInvalidValue;
  if (attribute == 2) {
    *static_cast<unsigned*>(data) = index < 0 ? 1 : 2;
  } else if (attribute == 9) {
    *static_cast<int*>(data) = index < 0 ? 0 : index;
  } else {
    return kInvalidValue;
  }
  return kSuccess;
}

int cuMemHostAlloc(void** address, size_t nbytes, unsigned int) {
  if (int status = fake_failing("cuMemHostAlloc")) return status;
  if (int status = refused_by_captures()) return status;
  if (current.empty()) return kInvalidContext;
  *address = std::aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
  std::memset(*address, kFresh, nbytes);
  std::lock_guard lock(state.mutex);
  state.pinned[*address] = nbytes;
  return kSuccess;
}

int cuMemFreeHost(void* address) {
  std::lock_guard lock(state.mutex);
  if (!state.pinned.erase(address)) return kInvalidValue;
  std::free(address);
  return kSuccess;
}

int cuMemAllocAsync(CUdeviceptr* address, size_t nbytes, CUstream stream) {
  if (int status = fake_failing("cuMemAllocAsync")) return status;
  std::lock_guard lock(state.mutex);
  auto found = stream_of(stream);
  if (!found) return kInvalidHandle;
  *address = allocate(found->device, nbytes);
  return *address ? kSuccess : kOutOfMemory;
}

int cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return enqueued(stream, [address] { fake_free(address); });
}

int cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  return enqueued(stream, [=] { std::memmove(usable(target, nbytes), usable(source, nbytes), nbytes); });
}

int cuMemsetD8Async(CUdeviceptr target, unsigned char byte, size_t nbytes, CUstream stream) {
  return enqueued(stream, [=] { std::memset(usable(target, nbytes), byte, nbytes); });
}

int cuMemsetD2D8Async(CUdeviceptr target, size_t pitch, unsigned char byte, size_t width, size_t height,
                      CUstream stream) {
  return enqueued(stream, [=] {
    for (size_t row = 0; row < height; ++row) std::memset(usable(target + row * pitch, width), byte, width);
  });
}

}  // extern "C"
