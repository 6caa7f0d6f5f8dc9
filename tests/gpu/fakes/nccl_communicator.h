// NCCL without a GPU, over the fake of CUDA's driver. Ranks are threads or processes of this host.
//
// A collective is a task of its stream, which moves bytes through shared memory and waits for the other ranks there.
// A communicator that does not block returns at once from everything, and does it in a thread; until then its state is
// "in progress", and it refuses other calls. Ranks say what they call, so that different calls are an error of the
// communicator, where NCCL itself would wait for ever or mix them up. A rank that dies is not noticed, as by NCCL
// within a host: the others wait until they abort.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fake.h"
#include "nccl_segment.h"

constexpr int kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5,
              kInProgress = 7;
constexpr int kFirstMadeOperation = 5;

enum Kind : int { kAllReduce = 1, kReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };

struct Call {  // what a rank says of a call to the others; for a send only that, the kind, the count and the type
  int kind, type, operation, root;
  uint64_t count;
};

struct Task {
  ncclComm_t comm;
  CUstream stream;
  Call call;
  CUdeviceptr source, target;
  double factor;
};

struct ncclComm {
  int rank = 0, size = 0, device = -1;
  bool is_blocking = true;
  Segment* segment = nullptr;
  std::string name;
  std::atomic<bool> is_aborted{false};
  std::atomic<int> state{kSuccess};
  std::atomic<int> tasks{0};
  std::mutex mutex;
  std::string error;
  std::map<int, double> operations;
  std::vector<std::thread> threads;

  void fail(int status, const std::string& reason) {
    {
      std::lock_guard lock(mutex);
      error = reason;
    }
    state = status;
  }
};

inline void pause_a_moment() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

// Does all calls of a group that are of one communicator and one stream, in the thread of that.
void run(std::vector<Task> tasks);

extern std::atomic<int> hanging;        // calls that will never end by themselves
extern std::atomic<int> failing_later;  // the error that the next call meets on its way
