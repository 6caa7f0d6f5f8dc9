// Contexts, errors, and what tests ask for.

#include <cstring>

#include "cuda_state.h"

State& state = *new State;
thread_local std::vector<CUcontext> current;

extern "C" {

void fake_fail(const char* name, int status) {
  std::lock_guard lock(state.mutex);
  state.failures[name] = status;
}

int fake_failing(const char* name) {
  std::lock_guard lock(state.mutex);
  auto found = state.failures.find(name);
  if (found == state.failures.end()) return kSuccess;
  int status = found->second;
  state.failures.erase(found);
  return status;
}

int fake_contexts() {
  std::lock_guard lock(state.mutex);
  return state.retained[0] + state.retained[1];
}

int fake_contexts_on(int device) {
  std::lock_guard lock(state.mutex);
  return state.retained[device];
}

int fake_current_device() { return current.empty() ? -1 : current.back()->device; }

bool fake_is_initialized() {
  std::lock_guard lock(state.mutex);
  return state.is_initialized;
}

int cuInit(unsigned int) {
  if (int status = fake_failing("cuInit")) return status;
  std::lock_guard lock(state.mutex);
  if (!state.is_initialized) {
    for (auto& device : state.devices) make(device);
  }
  state.is_initialized = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuGetErrorName(int error, const char** text) {
  static const std::map<int, const char*> names = {{0, "CUDA_SUCCESS"},
                                                   {1, "CUDA_ERROR_INVALID_VALUE"},
                                                   {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {3, "CUDA_ERROR_NOT_INITIALIZED"},
                                                   {100, "CUDA_ERROR_NO_DEVICE"},
                                                   {101, "CUDA_ERROR_INVALID_DEVICE"},
                                                   {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                   {400, "CUDA_ERROR_INVALID_HANDLE"},
                                                   {600, "CUDA_ERROR_NOT_READY"},
                                                   {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  auto found = names.find(error);
  *text = found == names.end() ? nullptr : found->second;
  return *text ? kSuccess : kInvalidValue;
}

int cuGetErrorString(int error, const char** text) {
  static thread_local std::string said;
  said = "a fake of error " + std::to_string(error);
  *text = said.c_str();
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = kDevices;
  return state.is_initialized ? kSuccess : kNotInitialized;
}

int cuDeviceGet(int* device, int ordinal) {
  if (!state.is_initialized) return kNotInitialized;
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

// The first compute capability on which NCCL adds float8.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  *value = attribute == 75 ? 9 : 0;
  return kSuccess;
}

// All processes see the same two GPUs.
int cuDeviceGetUuid_v2(CUuuid* uuid, int device) {
  if (int status = fake_failing("cuDeviceGetUuid_v2")) return status;
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  std::memset(uuid->bytes, 0xA0 + device, sizeof(uuid->bytes));
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(CUcontext* context, int device) {
  if (int status = fake_failing("cuDevicePrimaryCtxRetain")) return status;
  std::lock_guard lock(state.mutex);
  state.retained[device]++;
  *context = &state.contexts[device];
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  std::lock_guard lock(state.mutex);
  return state.retained[device]-- > 0 ? kSuccess : kInvalidContext;
}

int cuCtxPushCurrent_v2(CUcontext context) {
  current.push_back(context);
  return kSuccess;
}

int cuCtxPopCurrent_v2(CUcontext* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

}  // extern "C"
