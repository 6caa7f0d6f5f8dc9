// What a stream does of a collective.

#include <cstring>
#include <utility>

#include "nccl_communicator.h"
#include "nccl_reduce.h"

std::atomic<int> hanging{0}, failing_later{0};

namespace {

struct Transfer {  // what remains of it; the call goes before the bytes
  int peer;
  bool is_sent;
  std::vector<char> head;
  size_t head_done = 0;
  char* bytes;
  size_t nbytes, done = 0;
  Call call;

  bool is_done() const { return head_done == head.size() && done == nbytes; }
};

// Does all transfers at once; false if the communicator was aborted or failed before their end.
bool transfer(ncclComm& comm, std::vector<Transfer>& transfers) {
  while (!comm.is_aborted) {
    bool is_done = true, has_moved = false;
    std::map<std::pair<int, bool>, bool> is_busy;  // those between two ranks go one after the other
    for (auto& each : transfers) {
      if (each.is_done() || is_busy[{each.peer, each.is_sent}]) continue;
      is_busy[{each.peer, each.is_sent}] = true;
      Ring& ring = each.is_sent ? comm.segment->rings[comm.rank][each.peer] : comm.segment->rings[each.peer][comm.rank];
      auto move = [&](char* at, size_t nbytes) { return each.is_sent ? ring.push(at, nbytes) : ring.pull(at, nbytes); };
      size_t moved = 0;
      if (each.head_done < each.head.size()) {
        moved = move(each.head.data() + each.head_done, each.head.size() - each.head_done);
        each.head_done += moved;
        if (!each.is_sent && each.head_done == each.head.size() &&
            std::memcmp(each.head.data(), &each.call, sizeof(Call))) {
          comm.fail(kInvalidUsage, "ranks " + std::to_string(comm.rank) + " and " + std::to_string(each.peer) +
                                       " make different calls");
          return false;
        }
      } else {
        moved = move(each.bytes + each.done, each.nbytes - each.done);
        each.done += moved;
      }
      has_moved |= moved > 0;
      is_done &= each.is_done();
    }
    if (is_done) {
      bool is_all = true;
      for (auto& each : transfers) is_all &= each.is_done();
      if (is_all) return true;
    }
    if (!has_moved) pause_a_moment();
  }
  return false;
}

Transfer sending(const Call& call, int peer, const void* bytes, size_t nbytes) {
  auto begin = reinterpret_cast<const char*>(&call);
  return {peer, true, {begin, begin + sizeof(Call)}, 0, const_cast<char*>(static_cast<const char*>(bytes)), nbytes,
          0,    call};
}

Transfer receiving(const Call& call, int peer, void* bytes, size_t nbytes) {
  return {peer, false, std::vector<char>(sizeof(Call)), 0, static_cast<char*>(bytes), nbytes, 0, call};
}

struct Bytes {  // of a rank, where its device sees them
  char* source;
  char* target;
};

void reduce_all(Task& task, Bytes own) {
  ncclComm& comm = *task.comm;
  const Call& call = task.call;
  size_t nbytes = call.count * size_of(call.type);
  bool is_scattered = call.kind == kReduceScatter, is_rooted = call.kind == kReduce;
  std::vector<std::vector<char>> received(comm.size);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < comm.size; peer++) {
    if (peer == comm.rank) continue;
    if (!is_rooted || peer == call.root) {
      transfers.push_back(sending(call, peer, own.source + (is_scattered ? peer * nbytes : 0), nbytes));
    }
    if (!is_rooted || comm.rank == call.root) {
      received[peer].resize(nbytes);
      transfers.push_back(receiving(call, peer, received[peer].data(), nbytes));
    }
  }
  if (!transfer(comm, transfers) || (is_rooted && comm.rank != call.root)) return;
  std::vector<char> mine(own.source + (is_scattered ? comm.rank * nbytes : 0),
                         own.source + (is_scattered ? comm.rank * nbytes : 0) + nbytes);
  std::vector<const void*> inputs;
  for (int rank = 0; rank < comm.size; rank++) {
    inputs.push_back(rank == comm.rank ? mine.data() : received[rank].data());
  }
  int operation = call.operation >= kFirstMadeOperation ? kSum : call.operation;
  reduce(inputs, own.target, call.count, call.type, operation, task.factor);
}

void copy_all(Task& task, Bytes own) {
  ncclComm& comm = *task.comm;
  const Call& call = task.call;
  size_t nbytes = call.count * size_of(call.type);
  bool is_gathered = call.kind == kAllGather;
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < comm.size; peer++) {
    if (peer == comm.rank) continue;
    if (is_gathered || comm.rank == call.root) transfers.push_back(sending(call, peer, own.source, nbytes));
    if (is_gathered || peer == call.root) {
      transfers.push_back(receiving(call, peer, own.target + (is_gathered ? peer * nbytes : 0), nbytes));
    }
  }
  if (transfer(comm, transfers) && (is_gathered || comm.rank == call.root)) {
    std::memmove(own.target + (is_gathered ? comm.rank * nbytes : 0), own.source, nbytes);
  }
}

// The bytes of `task` as its device sees them; false, and the communicator has failed, if they are elsewhere.
bool look_up(const Task& task, Bytes& own) {
  const Call& call = task.call;
  const ncclComm& comm = *task.comm;
  size_t nbytes = call.count * size_of(call.type);
  size_t read = call.kind == kReduceScatter ? nbytes * comm.size : nbytes;
  size_t written = call.kind == kAllGather ? nbytes * comm.size : nbytes;
  bool reads = call.kind != kReceive && !(call.kind == kBroadcast && comm.rank != call.root);
  bool writes = call.kind != kSend && !(call.kind == kReduce && comm.rank != call.root);
  own = {reads ? static_cast<char*>(fake_own(task.source, read)) : nullptr,
         writes ? static_cast<char*>(fake_own(task.target, written)) : nullptr};
  if ((reads && read && !own.source) || (writes && written && !own.target)) {
    task.comm->fail(kUnhandledCudaError, "an illegal memory access was encountered");
    return false;
  }
  return true;
}

}  // namespace

void run(std::vector<Task> tasks) {
  ncclComm& comm = *tasks.front().comm;
  if (int status = failing_later.exchange(0)) comm.fail(status, "a fake error on the way");
  int expected = hanging.load();
  while (expected > 0 && !hanging.compare_exchange_weak(expected, expected - 1)) {
  }
  while ((expected > 0 || comm.state != kSuccess) && !comm.is_aborted) pause_a_moment();
  std::vector<Transfer> messages;
  for (auto& task : tasks) {
    Bytes own;
    if (comm.is_aborted || !look_up(task, own)) break;
    size_t nbytes = task.call.count * size_of(task.call.type);
    if (task.call.kind == kSend || task.call.kind == kReceive) {
      Call call{kSend, task.call.type, 0, 0, task.call.count};
      bool is_sent = task.call.kind == kSend;
      messages.push_back(is_sent ? sending(call, task.call.root, own.source, nbytes)
                                 : receiving(call, task.call.root, own.target, nbytes));
    } else if (task.call.kind <= kReduceScatter) {
      reduce_all(task, own);
    } else {
      copy_all(task, own);
    }
  }
  if (!messages.empty()) transfer(comm, messages);
  while (comm.state != kSuccess && comm.state != kInProgress && !comm.is_aborted)
    pause_a_moment();  // a kernel hangs on
  comm.tasks--;
}
