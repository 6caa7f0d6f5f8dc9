// Streams and events.

#include <atomic>
#include <thread>
#include <utility>

#include "cuda_state.h"

namespace {

thread_local int capture_mode = 0;

// The default stream of each device.
CUstream_st* defaults() {
  static CUstream_st made[kDevices] = {{nullptr, 0, 0, false}, {nullptr, 1, 0, false}};
  return made;
}

std::atomic<int> running = 0;  // queues

std::shared_ptr<Queue> started() {
  auto queue = std::make_shared<Queue>();
  running++;
  std::thread([queue] {
    queue->run();
    running--;
  }).detach();
  return queue;
}

std::shared_ptr<Queue> queue_of(CUstream handle) {
  std::lock_guard lock(state.mutex);
  auto stream = stream_of(handle);
  return stream ? stream->queue : nullptr;
}

int device_of(CUstream handle) {
  std::lock_guard lock(state.mutex);
  return stream_of(handle)->device;
}

// The mutex is held. What the default stream gets comes after all that blocking streams have, and before what they get.
void put_into_default(CUstream_st& stream, std::function<void()> task) {
  auto done = std::make_shared<Signal>();
  std::vector<std::shared_ptr<Signal>> before;
  for (auto& [handle, other] : state.streams) {
    if (!other->is_blocking || other->device != stream.device || other->capture != kNoCapture) continue;
    auto reached = before.emplace_back(std::make_shared<Signal>());
    other->queue->put([reached] { reached->set(); });
    other->queue->put([done] { done->wait(); });
  }
  stream.queue->put([before, task, done] {
    for (auto& each : before) each->wait();
    task();
    done->set();
  });
}

bool is_captured_implicitly(const CUstream_st& stream) {
  if (&stream != &defaults()[stream.device]) return false;
  for (auto& [handle, other] : state.streams) {
    if (other->is_blocking && other->device == stream.device && other->capture != kNoCapture) return true;
  }
  return false;
}

}  // namespace

CUstream_st* stream_of(CUstream handle) {
  if (handle) {
    auto found = state.streams.find(handle);
    return found == state.streams.end() ? nullptr : found->second.get();
  }
  if (current.empty()) return nullptr;
  CUstream_st& found = defaults()[current.back()->device];
  if (!found.queue) found.queue = started();
  return &found;
}

bool fake_enqueue(CUstream handle, std::function<void()> task) {
  std::lock_guard lock(state.mutex);
  auto stream = stream_of(handle);
  if (!stream) return false;
  if (!handle) {
    put_into_default(*stream, std::move(task));
  } else if (stream->capture == kNoCapture) {
    stream->queue->put(std::move(task));
  }  // what is captured is not done now
  return true;
}

int refused_by_captures() {
  if (capture_mode == 2) return kSuccess;
  std::lock_guard lock(state.mutex);
  int status = kSuccess;
  for (auto& [handle, stream] : state.streams) {
    if (stream->capture == kNoCapture) continue;
    stream->capture = kInvalidated;
    status = kCaptureUnsupported;
  }
  return status;
}

extern "C" {

void fake_hold(CUstream stream) { queue_of(stream)->set(&Queue::is_held, true); }
void fake_release(CUstream stream) { queue_of(stream)->set(&Queue::is_held, false); }

void fake_begin_capture(CUstream stream) {
  std::lock_guard lock(state.mutex);
  stream_of(stream)->capture = kCapturing;
}

bool fake_end_capture(CUstream stream) {
  std::lock_guard lock(state.mutex);
  return std::exchange(stream_of(stream)->capture, kNoCapture) == kCapturing;
}

bool fake_is_settled() {
  std::lock_guard lock(state.mutex);
  int alive = static_cast<int>(state.streams.size());
  for (int device = 0; device < kDevices; device++) alive += defaults()[device].queue != nullptr;
  return running == alive;
}

int fake_streams() {
  std::lock_guard lock(state.mutex);
  return static_cast<int>(state.streams.size());
}

int fake_events() {
  std::lock_guard lock(state.mutex);
  return static_cast<int>(state.events.size());
}

int fake_priority(CUstream stream) {
  std::lock_guard lock(state.mutex);
  return state.streams.at(stream)->priority;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = kGreatestPriority;
  return current.empty() ? kInvalidContext : kSuccess;
}

int cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  if (int status = fake_failing("cuStreamCreateWithPriority")) return status;
  if (current.empty()) return kInvalidContext;
  if (flags > 1 || priority > 0 || priority < kGreatestPriority) return kInvalidValue;
  auto made = std::make_unique<CUstream_st>(CUstream_st{started(), current.back()->device, priority, flags == 0});
  *stream = made.get();
  std::lock_guard lock(state.mutex);
  state.streams[*stream] = std::move(made);
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

int cuStreamIsCapturing(CUstream handle, int* status) {
  std::lock_guard lock(state.mutex);
  auto stream = stream_of(handle);
  if (!stream) return kInvalidHandle;
  if (is_captured_implicitly(*stream)) return kCaptureImplicit;
  *status = stream->capture;
  return kSuccess;
}

int cuStreamSynchronize(CUstream stream) {
  if (int status = refused_by_captures()) return status;
  auto signal = std::make_shared<Signal>();
  int status = enqueued(stream, [signal] { signal->set(); });
  if (status == kSuccess) signal->wait();
  return status ? status : broken(device_of(stream));
}

int cuStreamDestroy_v2(CUstream stream) {
  std::lock_guard lock(state.mutex);  // or the default stream would wait for a queue that has ended
  auto found = state.streams.find(stream);
  if (found == state.streams.end()) return kInvalidHandle;
  found->second->queue->set(&Queue::is_closed, true);
  state.streams.erase(found);
  return kSuccess;
}

int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  if (flags) return kInvalidValue;
  std::shared_ptr<Signal> signal;
  {
    std::lock_guard lock(state.mutex);
    if (!state.events.count(event)) return kInvalidHandle;
    signal = event->signal;
    if (auto found = stream_of(stream); found && found->capture != kNoCapture) {
      found->capture = kInvalidated;  // events are of outside
      return kCaptureIsolation;
    }
  }
  return enqueued(stream, [signal] { signal->wait(); });
}

int cuEventCreate(CUevent* event, unsigned int flags) {
  if (int status = fake_failing("cuEventCreate")) return status;
  if (current.empty()) return kInvalidContext;
  if (flags & ~3u) return kInvalidValue;
  auto signal = std::make_shared<Signal>();
  signal->set();
  *event = new CUevent_st{signal, current.back()->device};
  std::lock_guard lock(state.mutex);
  state.events.insert(*event);
  return kSuccess;
}

int cuEventRecord(CUevent event, CUstream stream) {
  if (int status = fake_failing("cuEventRecord")) return status;
  auto signal = std::make_shared<Signal>();
  {
    std::lock_guard lock(state.mutex);
    auto found = stream_of(stream);
    if (!state.events.count(event) || !found || found->device != event->device) return kInvalidHandle;
    if (is_captured_implicitly(*found)) return kCaptureImplicit;
    if (found->capture != kNoCapture) found->capture = kInvalidated;  // as whoever waits for it would do
    event->signal = signal;
  }
  return enqueued(stream, [signal] { signal->set(); });
}

int cuEventQuery(CUevent event) {
  if (int status = fake_failing("cuEventQuery")) return status;
  if (int status = refused_by_captures()) return status;
  std::lock_guard lock(state.mutex);
  if (!state.events.count(event)) return kInvalidHandle;
  return event->signal->is_set() ? kSuccess : kNotReady;
}

int cuEventSynchronize(CUevent event) {
  if (int status = refused_by_captures()) return status;
  std::shared_ptr<Signal> signal;
  int device;
  {
    std::lock_guard lock(state.mutex);
    if (!state.events.count(event)) return kInvalidHandle;
    signal = event->signal;
    device = event->device;
  }
  signal->wait();
  int status = fake_failing("cuEventSynchronize");
  return status ? status : broken(device);
}

int cuEventDestroy_v2(CUevent event) {
  std::lock_guard lock(state.mutex);
  if (!state.events.erase(event)) return kInvalidHandle;
  delete event;
  return kSuccess;
}

}  // extern "C"
