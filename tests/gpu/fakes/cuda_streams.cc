// Streams and events.

#include <thread>

#include "cuda_state.h"

namespace {

std::shared_ptr<Queue> queue_of(CUstream stream) {
  std::lock_guard lock(state.mutex);
  auto found = state.streams.find(stream);
  return found == state.streams.end() ? nullptr : found->second->queue;
}

int device_of(CUstream stream) {
  std::lock_guard lock(state.mutex);
  return state.streams.at(stream)->device;
}

}  // namespace

bool fake_enqueue(CUstream stream, std::function<void()> task) {
  auto queue = queue_of(stream);
  if (queue) queue->put(std::move(task));
  return queue != nullptr;
}

extern "C" {

void fake_hold(CUstream stream) { queue_of(stream)->set(&Queue::is_held, true); }
void fake_release(CUstream stream) { queue_of(stream)->set(&Queue::is_held, false); }

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
  auto queue = std::make_shared<Queue>();
  auto made = std::make_unique<CUstream_st>(CUstream_st{queue, current.back()->device, priority});
  *stream = made.get();
  std::thread([queue] { queue->run(); }).detach();
  std::lock_guard lock(state.mutex);
  state.streams[*stream] = std::move(made);
  return kSuccess;
}

int cuStreamSynchronize(CUstream stream) {
  auto signal = std::make_shared<Signal>();
  int status = enqueued(stream, [signal] { signal->set(); });
  if (status == kSuccess) signal->wait();
  return status ? status : broken(device_of(stream));
}

int cuStreamDestroy_v2(CUstream stream) {
  auto queue = queue_of(stream);
  if (!queue) return kInvalidHandle;
  queue->set(&Queue::is_closed, true);
  std::lock_guard lock(state.mutex);
  state.streams.erase(stream);
  return kSuccess;
}

int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  if (flags) return kInvalidValue;
  std::shared_ptr<Signal> signal;
  {
    std::lock_guard lock(state.mutex);
    if (!state.events.count(event)) return kInvalidHandle;
    signal = event->signal;
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
    auto found = state.streams.find(stream);
    if (!state.events.count(event) || found == state.streams.end()) return kInvalidHandle;
    if (found->second->device != event->device) return kInvalidHandle;
    event->signal = signal;
  }
  return enqueued(stream, [signal] { signal->set(); });
}

int cuEventQuery(CUevent event) {
  if (int status = fake_failing("cuEventQuery")) return status;
  std::lock_guard lock(state.mutex);
  if (!state.events.count(event)) return kInvalidHandle;
  return event->signal->is_set() ? kSuccess : kNotReady;
}

int cuEventSynchronize(CUevent event) {
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
