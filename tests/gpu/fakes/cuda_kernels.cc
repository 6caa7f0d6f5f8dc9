// Modules and launches. What a kernel does is up to an interpreter of PTX, which the tests give.

#include <cstdio>
#include <cstring>

#include "cuda_state.h"

namespace {

constexpr size_t kMostParameters = 4096;
constexpr int kIllegalAddress = 700;
fake_interpreter interpreter = nullptr;

// The bytes of the one parameter of the kernel `name`; 0 if there is no such kernel.
size_t parameters_of(const std::string& text, const std::string& name) {
  size_t at = text.find(".visible .entry " + name + "(");
  if (at == std::string::npos) return 0;
  size_t nbytes = 0;
  std::sscanf(text.c_str() + text.find('[', at), "[%zu]", &nbytes);
  return nbytes;
}

bool is_unloaded(const CUfunc_st& kernel) {
  std::lock_guard lock(state.mutex);
  return *kernel.is_unloaded;
}

}  // namespace

extern "C" {

void fake_interpret(fake_interpreter run) { interpreter = run; }

void fake_heal() {
  std::lock_guard lock(state.mutex);
  for (int& broken : state.broken) broken = kSuccess;
}

int fake_modules() {
  std::lock_guard lock(state.mutex);
  return static_cast<int>(state.modules.size());
}

int cuModuleLoadData(CUmodule* module, const void* image) {
  if (int status = fake_failing("cuModuleLoadData")) return status;
  if (int status = refused_by_captures()) return status;
  if (current.empty()) return kInvalidContext;
  auto made = std::make_unique<CUmod_st>();
  made->text = static_cast<const char*>(image);
  made->device = current.back()->device;
  *module = made.get();
  std::lock_guard lock(state.mutex);
  state.modules[*module] = std::move(made);
  return kSuccess;
}

int cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  std::lock_guard lock(state.mutex);
  if (!state.modules.count(module)) return kInvalidHandle;
  size_t nbytes = parameters_of(module->text, name);
  if (!nbytes) return kNotFound;
  auto& made = module->functions[name];
  made = std::make_unique<CUfunc_st>(CUfunc_st{module->text, name, nbytes, module->device, module->is_unloaded});
  *function = made.get();
  return kSuccess;
}

int cuModuleUnload(CUmodule module) {
  if (int status = refused_by_captures()) return status;
  std::lock_guard lock(state.mutex);
  auto found = state.modules.find(module);
  if (found == state.modules.end()) return kInvalidHandle;
  *found->second->is_unloaded = true;  // at once, although a stream may be about to run a kernel of it
  state.modules.erase(found);
  return kSuccess;
}

int cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** parameters,
                   void** extra) {
  if (int status = fake_failing("cuLaunchKernel")) return status;
  if (current.empty() || current.back()->device != function->device) return kInvalidContext;
  bool is_flat = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && !shared && !extra;
  if (!is_flat || !grid_x || !block_x || block_x > 1024 || function->nbytes > kMostParameters) return kInvalidValue;
  std::string copied(static_cast<const char*>(parameters[0]), function->nbytes);
  return enqueued(stream, [kernel = *function, grid_x, block_x, copied] {
    if (broken(kernel.device)) return;
    int status = kIllegalAddress;
    if (!is_unloaded(kernel)) {
      status = interpreter(kernel.text.c_str(), kernel.name.c_str(), grid_x, block_x, copied.data(), copied.size());
    }
    std::lock_guard lock(state.mutex);
    state.broken[kernel.device] = status;
  });
}

}  // extern "C"
