// Communicators, and the calls that launch collectives.

#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>

#include "nccl_communicator.h"
#include "nccl_reduce.h"

namespace {

constexpr unsigned kMagic = 0xcafebeef;
constexpr int kVersion = 23203;

thread_local int depth = 0;
thread_local std::vector<Task> grouped;
thread_local std::string last_error;
std::atomic<int> alive{0};

int refused(int status, const std::string& reason) {
  last_error = reason;
  return status;
}

int launch(std::vector<Task> tasks) {
  std::map<std::pair<ncclComm_t, CUstream>, std::vector<Task>> parts;
  for (auto& task : tasks) parts[{task.comm, task.stream}].push_back(task);
  int result = kSuccess;
  for (auto& [place, part] : parts) {
    ncclComm_t comm = place.first;
    CUstream stream = place.second;
    comm->tasks++;
    auto enqueue = [comm, stream, part = part] {
      if (fake_enqueue(stream, [part] { run(part); })) return true;
      comm->tasks--;
      comm->fail(kUnhandledCudaError, "invalid resource handle");
      return false;
    };
    if (comm->is_blocking) {
      if (!enqueue()) result = refused(kUnhandledCudaError, "invalid resource handle");
    } else {
      comm->state = kInProgress;
      comm->threads.emplace_back([comm, enqueue] {
        if (enqueue()) {
          int launching = kInProgress;
          comm->state.compare_exchange_strong(launching, kSuccess);
        }
      });
      result = kInProgress;
    }
  }
  return result;
}

int called(const char* name, ncclComm_t comm, CUstream stream, Call call, const void* source, const void* target) {
  if (int status = fake_failing(name)) return refused(status, std::string("a fake error of ") + name);
  if (comm->state == kInProgress) return refused(kInvalidUsage, "the call before this one is still in progress");
  if (comm->state != kSuccess) return refused(comm->state, comm->error);
  if (!size_of(call.type)) return refused(kInvalidArgument, "invalid type " + std::to_string(call.type));
  if (call.root < 0 || call.root >= comm->size) return refused(kInvalidArgument, "invalid root");
  bool is_made = comm->operations.count(call.operation) > 0;
  if (call.operation >= kFirstMadeOperation && !is_made) return refused(kInvalidArgument, "invalid operation");
  double factor = is_made ? comm->operations[call.operation] : 1;
  grouped.push_back(
      {comm, stream, call, reinterpret_cast<CUdeviceptr>(source), reinterpret_cast<CUdeviceptr>(target), factor});
  if (depth > 0) return kSuccess;
  return launch(std::move(grouped));
}

// The GPU, and what NCCL takes for its host.
uint64_t place_of(const ncclComm* comm) {
  const char* host = std::getenv("NCCL_HOSTID");
  return std::hash<std::string>{}(host ? host : "") * 16 + static_cast<uint64_t>(comm->device) + 1;
}

bool may_share() {
  const char* set = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return set && std::atoi(set) != 0;
}

void join(ncclComm* comm) {
  comm->segment = map_segment(comm->name);
  if (!comm->segment) return comm->fail(kSystemError, "no shared memory");
  int none = 0;
  comm->segment->size.compare_exchange_strong(none, comm->size);
  if (comm->segment->size != comm->size) return comm->fail(kInvalidUsage, "ranks expect different numbers of ranks");
  comm->segment->gpus[comm->rank] = place_of(comm);
  if (++comm->segment->joined == comm->size) unlink_segment(comm->name);
  while (comm->segment->joined < comm->size && !comm->is_aborted) pause_a_moment();
  for (int peer = 0; peer < comm->size && !comm->is_aborted; peer++) {
    if (peer == comm->rank || comm->segment->gpus[peer] != comm->segment->gpus[comm->rank] || may_share()) continue;
    return comm->fail(kInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(comm->rank) + " and rank " +
                                         std::to_string(peer));
  }
  if (!comm->is_aborted) comm->state = kSuccess;
}

void leave(ncclComm_t comm) {
  for (auto& thread : comm->threads) thread.join();
  while (comm->tasks) pause_a_moment();
  if (comm->segment) {
    if (comm->segment->joined < comm->size) unlink_segment(comm->name);
    unmap_segment(comm->segment);
  }
  delete comm;
  alive--;
}

}  // namespace

extern "C" {

// The number of communicators in this process.
int fake_communicators() { return alive; }
// The next `count` launches in this process never end by themselves, like a kernel whose peer is gone.
void fake_hang(int count) { hanging = count; }
// The next launch meets an error, which the communicator's state shows later.
void fake_fail_later(int status) { failing_later = status; }

int ncclGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  static const char* texts[] = {"no error",         "a CUDA error",  "a system error", "an internal error",
                                "invalid argument", "invalid usage", "a remote error", "in progress"};
  return result >= 0 && result <= kInProgress ? texts[result] : "unknown";
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm) {
    std::lock_guard lock(comm->mutex);
    if (!comm->error.empty()) last_error = comm->error;
  }
  return last_error.c_str();
}

int ncclGetUniqueId(ncclUniqueId* id) {
  if (int status = fake_failing("ncclGetUniqueId")) return refused(status, "a fake error of ncclGetUniqueId");
  std::random_device random;
  std::string name = "/fake-nccl-" + std::to_string(random()) + "-" + std::to_string(random());
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, name.data(), name.size());
  return kSuccess;
}

int ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *made = nullptr;
  if (int status = fake_failing("ncclCommInitRankConfig")) return refused(status, "a fake error of the init");
  if (config && (config->magic != kMagic || config->size < sizeof(ncclConfig_t))) {
    return refused(kInvalidArgument, "the configuration was not initialized");
  }
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) return refused(kInvalidArgument, "invalid rank");
  if (fake_current_device() < 0) return refused(kUnhandledCudaError, "no current device");
  auto comm = new ncclComm;
  alive++;
  comm->rank = rank;
  comm->size = size;
  comm->device = fake_current_device();
  comm->name.assign(id.internal, strnlen(id.internal, sizeof(id.internal)));
  comm->is_blocking = !config || config->blocking != 0;
  *made = comm;
  if (comm->is_blocking) {
    join(comm);
    return comm->state;
  }
  comm->state = kInProgress;
  comm->threads.emplace_back([comm] { join(comm); });
  return kInProgress;
}

int ncclCommGetAsyncError(ncclComm_t comm, int* error) {
  if (int status = fake_failing("ncclCommGetAsyncError")) return status;
  *error = comm->state;
  return kSuccess;
}

int ncclCommFinalize(ncclComm_t comm) {
  if (comm->state != kSuccess) return refused(kInvalidUsage, "the communicator cannot be finalized now");
  if (comm->is_blocking) {
    while (comm->tasks) pause_a_moment();
    return kSuccess;
  }
  comm->state = kInProgress;
  comm->threads.emplace_back([comm] {
    while (comm->tasks) pause_a_moment();
    int finishing = kInProgress;
    comm->state.compare_exchange_strong(finishing, kSuccess);
  });
  return kInProgress;
}

int ncclCommDestroy(ncclComm_t comm) {
  leave(comm);
  return kSuccess;
}

int ncclCommAbort(ncclComm_t comm) {
  comm->is_aborted = true;
  leave(comm);
  return kSuccess;
}

int ncclGroupStart() {
  depth++;
  return kSuccess;
}

int ncclGroupEnd() {
  if (depth == 0) return refused(kInvalidUsage, "no group was started");
  if (--depth > 0) return kSuccess;
  auto tasks = std::move(grouped);
  grouped.clear();
  if (int status = fake_failing("ncclGroupEnd")) return refused(status, "a fake error of ncclGroupEnd");
  return launch(std::move(tasks));
}

int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int residence, ncclComm_t comm) {
  if (residence != 1) return refused(kInvalidArgument, "the fake takes scalars on the host only");
  *operation = kFirstMadeOperation;
  while (comm->operations.count(*operation)) ++*operation;
  comm->operations[*operation] = scalar_at(scalar, type);
  return kSuccess;
}

int ncclRedOpDestroy(int operation, ncclComm_t comm) {
  return comm->operations.erase(operation) ? kSuccess : refused(kInvalidArgument, "invalid operation");
}

int ncclAllReduce(const void* source, void* target, size_t count, int type, int operation, ncclComm_t comm,
                  CUstream stream) {
  return called("ncclAllReduce", comm, stream, {kAllReduce, type, operation, 0, count}, source, target);
}

int ncclReduce(const void* source, void* target, size_t count, int type, int operation, int root, ncclComm_t comm,
               CUstream stream) {
  return called("ncclReduce", comm, stream, {kReduce, type, operation, root, count}, source, target);
}

int ncclReduceScatter(const void* source, void* target, size_t count, int type, int operation, ncclComm_t comm,
                      CUstream stream) {
  return called("ncclReduceScatter", comm, stream, {kReduceScatter, type, operation, 0, count}, source, target);
}

int ncclAllGather(const void* source, void* target, size_t count, int type, ncclComm_t comm, CUstream stream) {
  return called("ncclAllGather", comm, stream, {kAllGather, type, 0, 0, count}, source, target);
}

int ncclBroadcast(const void* source, void* target, size_t count, int type, int root, ncclComm_t comm,
                  CUstream stream) {
  return called("ncclBroadcast", comm, stream, {kBroadcast, type, 0, root, count}, source, target);
}

int ncclSend(const void* source, size_t count, int type, int peer, ncclComm_t comm, CUstream stream) {
  return called("ncclSend", comm, stream, {kSend, type, 0, peer, count}, source, nullptr);
}

int ncclRecv(void* target, size_t count, int type, int peer, ncclComm_t comm, CUstream stream) {
  return called("ncclRecv", comm, stream, {kReceive, type, 0, peer, count}, nullptr, target);
}

}  // extern "C"
