// The device that PyTorch's own code asks for: guards, streams, events, memory.

#include "device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace {

constexpr int kDevices = 2;
constexpr int kFreed = 0xDB;

CUcontext context_of(int index) {
  static CUcontext* contexts = [] {
    auto* made = new CUcontext[kDevices];
    fake_check(cuInit(0), "cuInit");
    for (int each = 0; each < kDevices; each++) {
      fake_check(cuDevicePrimaryCtxRetain(&made[each], each), "cuDevicePrimaryCtxRetain");
    }
    return made;
  }();
  TORCH_CHECK(index >= 0 && index < kDevices, "there is no GPU ", index);
  return contexts[index];
}

struct Current {
  explicit Current(int index) { cuCtxPushCurrent_v2(context_of(index)); }
  ~Current() {
    CUcontext popped;
    cuCtxPopCurrent_v2(&popped);
  }
};

thread_local int device_now = 0;
thread_local CUstream current_streams[kDevices] = {};  // at first the default stream, which is null

CUstream stream_of(c10::Stream stream) { return reinterpret_cast<CUstream>(stream.id()); }

c10::Stream stream_on(int index, CUstream stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, index), reinterpret_cast<c10::StreamId>(stream));
}

struct Block {
  int device;
  CUdeviceptr address;
  size_t nbytes;
  std::vector<CUstream> streams;  // first the one in which it was allocated
};

// Freed memory by its device, stream and size. Whoever allocates in that stream gets it at once.
struct Cache {
  std::mutex mutex;
  std::multimap<std::tuple<int, CUstream, size_t>, CUdeviceptr> freed;
};

Cache& cache() {
  static Cache* made = new Cache;
  return *made;
}

// True if the block can be given out again in its own stream, whose work on it may still be to come.
bool keep(const Block& block) {
  constexpr size_t kMost = 256;
  std::lock_guard lock(cache().mutex);
  if (block.streams.size() > 1 || cache().freed.size() >= kMost) return false;
  if (cuMemsetD8Async(block.address, kFreed, block.nbytes, block.streams[0])) return false;
  cache().freed.emplace(std::tuple(block.device, block.streams[0], block.nbytes), block.address);
  return true;
}

CUdeviceptr kept(int device, CUstream stream, size_t nbytes) {
  std::lock_guard lock(cache().mutex);
  auto found = cache().freed.find({device, stream, nbytes});
  if (found == cache().freed.end()) return 0;
  auto address = found->second;
  cache().freed.erase(found);
  return address;
}

void free_block(void* opaque) {
  std::unique_ptr<Block> block(static_cast<Block*>(opaque));
  Current current(block->device);
  if (keep(*block)) return;
  auto left = std::make_shared<std::atomic<size_t>>(block->streams.size());
  auto pass = [left, address = block->address] {
    if (--*left == 0) fake_free(address);
  };
  for (auto stream : block->streams) {
    if (!fake_enqueue(stream, pass)) pass();  // a stream that was destroyed has done all its work
  }
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    c10::Device device(c10::kCUDA, device_now);
    if (!nbytes) return {nullptr, device};
    CUstream stream = fake_current_stream(device_now);
    CUdeviceptr address = kept(device_now, stream, nbytes);
    if (!address) address = fake_allocate(device_now, nbytes);
    TORCH_CHECK(address, "the fake GPU has no memory left");
    auto* block = new Block{device_now, address, nbytes, {stream}};
    return {reinterpret_cast<void*>(address), block, free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "PyTorch copies by itself"); }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, static_cast<c10::DeviceIndex>(device_now)}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override { device_now = device.has_index() ? device.index() : 0; }
  void uncheckedSetDevice(c10::Device device) const noexcept override { device_now = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_on(device.index(), fake_current_stream(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_on(device.index(), nullptr); }
  // PyTorch has a few, and gives them out in turns.
  c10::Stream getNewStream(c10::Device device, int) const override {
    constexpr size_t kStreams = 32;
    static std::mutex mutex;
    static std::vector<CUstream> made[kDevices];
    static size_t given[kDevices];
    std::lock_guard lock(mutex);
    auto& pool = made[device.index()];
    if (pool.size() < kStreams) {
      CUstream fresh;
      Current current(device.index());
      fake_check(cuStreamCreateWithPriority(&fresh, 1, 0), "cuStreamCreateWithPriority");
      pool.push_back(fresh);
    }
    return stream_on(device.index(), pool[given[device.index()]++ % kStreams]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream_of(stream);
    return before;
  }
  bool queryStream(const c10::Stream&) const override { TORCH_CHECK(false, "not faked"); }
  void synchronizeStream(const c10::Stream& stream) const override {
    Current current(stream.device_index());
    fake_check(cuStreamSynchronize(stream_of(stream)), "cuStreamSynchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    fake_record(data, stream_of(stream));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    Current current(stream.device_index());
    if (!*event) fake_check(cuEventCreate(reinterpret_cast<CUevent*>(event), 2), "cuEventCreate");
    fake_check(cuEventRecord(static_cast<CUevent>(*event), stream_of(stream)), "cuEventRecord");
  }
  void block(void* event, const c10::Stream& stream) const override {
    Current current(stream.device_index());
    fake_check(cuStreamWaitEvent(stream_of(stream), static_cast<CUevent>(event), 0), "cuStreamWaitEvent");
  }
  bool queryEvent(void* event) const override { return !event || cuEventQuery(static_cast<CUevent>(event)) == 0; }
  void synchronizeEvent(void* event) const override { cuEventSynchronize(static_cast<CUevent>(event)); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event) cuEventDestroy_v2(static_cast<CUevent>(event));
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(device_now); }
  void setCurrentDevice(c10::DeviceIndex device) const override { device_now = device; }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace

CUstream fake_current_stream(int device) {
  context_of(device);
  return current_streams[device];
}

c10::Allocator* fake_allocator() {
  static Allocator allocator;
  return &allocator;
}

void fake_record(const c10::DataPtr& data, CUstream stream) {
  if (auto* block = data.cast_context<Block>(free_block)) block->streams.push_back(stream);
}

void fake_settle(int device) {
  Current current(device);
  fake_check(cuStreamSynchronize(fake_current_stream(device)), "cuStreamSynchronize");
}

void fake_check(int status, const char* what) { TORCH_CHECK(status == 0, what, " failed: ", status); }

void fake_copy(int device, CUdeviceptr target, CUdeviceptr source, size_t nbytes) {
  Current current(device);
  fake_check(cuMemcpyAsync(target, source, nbytes, fake_current_stream(device)), "cuMemcpyAsync");
}
