// CUDA's driver with two GPUs that are threads of this process.
//
// A stream is a thread with a queue. The default one waits for those that are blocking, and they for it. While a stream
// is captured it does nothing, and what CUDA's global mode forbids then invalidates the capture. The memory of a GPU is
// mapped twice: at the addresses that callers get the host may neither read nor write, and streams use the other
// mapping. Memory is filled when it is allocated and when it is freed, so that what is read too early or too late is
// wrong. Calls that need a current context fail without one, and so do handles that were destroyed.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake.h"

constexpr int kSuccess = 0, kInvalidValue = 1, kNotInitialized = 3, kInvalidDevice = 101, kInvalidContext = 201,
              kInvalidHandle = 400, kNotFound = 500, kNotReady = 600, kOutOfMemory = 2, kCaptureUnsupported = 900,
              kCaptureIsolation = 905, kCaptureImplicit = 906;
constexpr int kDevices = 2;
constexpr size_t kBytes = size_t{1} << 28;
constexpr size_t kLine = 256;
constexpr int kFresh = 0xA5, kFreed = 0xDB;
constexpr int kGreatestPriority = -5;

struct Signal {  // what an event stands for, at one of its records
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;

  void set() {
    std::lock_guard lock(mutex);
    is_done = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_done; });
  }
  bool is_set() {
    std::lock_guard lock(mutex);
    return is_done;
  }
};

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool is_held = false;
  bool is_closed = false;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !is_held && (!tasks.empty() || is_closed); });
      if (tasks.empty()) return;
      auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }
  void put(std::function<void()> task) {
    std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    changed.notify_all();
  }
  void set(bool Queue::* flag, bool value) {
    std::lock_guard lock(mutex);
    this->*flag = value;
    changed.notify_all();
  }
};

struct Device {
  char* seen = nullptr;
  char* own = nullptr;
  std::map<size_t, size_t> used;  // bytes by offset
};

struct CUctx_st {
  int device;
};

enum Capture : int { kNoCapture = 0, kCapturing = 1, kInvalidated = 2 };

struct CUstream_st {
  std::shared_ptr<Queue> queue;
  int device;
  int priority;
  bool is_blocking;  // waits for the default stream, and that for it
  Capture capture = kNoCapture;
};

struct CUevent_st {
  std::shared_ptr<Signal> signal;
  int device;
};

struct CUfunc_st {
  std::string text, name;
  size_t nbytes;
  int device;
  std::shared_ptr<bool> is_unloaded;
};

struct CUmod_st {
  std::string text;
  std::shared_ptr<bool> is_unloaded = std::make_shared<bool>(false);
  int device;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
};

// Never freed: threads of streams may use it while the process ends.
struct State {
  std::mutex mutex;
  bool is_initialized = false;
  Device devices[kDevices];
  CUctx_st contexts[kDevices] = {{0}, {1}};
  int retained[kDevices] = {};
  std::map<CUstream, std::unique_ptr<CUstream_st>> streams;
  std::set<CUevent> events;
  std::map<void*, size_t> pinned;
  std::map<std::string, int> failures;
  std::map<CUmodule, std::unique_ptr<CUmod_st>> modules;
  int broken[kDevices] = {};  // the status of each that a kernel has broken
};
extern State& state;
extern thread_local std::vector<CUcontext> current;

void make(Device& device);

inline int broken(int device) {
  std::lock_guard lock(state.mutex);
  return state.broken[device];
}

// The stream, of which the default one has no handle, or null. The mutex is held.
CUstream_st* stream_of(CUstream handle);

// The answer to a call that must not be made while any stream is captured, unless its thread is relaxed about that.
int refused_by_captures();

// `fake_enqueue` with CUDA's answer.
inline int enqueued(CUstream stream, std::function<void()> task) {
  return fake_enqueue(stream, std::move(task)) ? kSuccess : kInvalidHandle;
}
