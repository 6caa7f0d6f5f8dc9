// oneCCL as a library of C: its collectives on the memory of this host, among the ranks of an MPI job, in blocking
// calls.

#include <cstddef>
#include <cstring>
#include <memory>
#include <oneapi/ccl.hpp>
#include <vector>

namespace {

// In the order of TYPES in worker.py.
constexpr ccl::datatype kTypes[] = {ccl::datatype::uint8,  ccl::datatype::int8,  ccl::datatype::int16,
                                    ccl::datatype::int32,  ccl::datatype::int64, ccl::datatype::float32,
                                    ccl::datatype::float64};

std::shared_ptr<ccl::kvs> kvs;
std::unique_ptr<ccl::communicator> communicator;

}  // namespace

extern "C" {

// What the static library needs of Intel's compiler and its tracing, which is off.
void* _intel_fast_memcpy(void* to, const void* from, size_t bytes) { return std::memmove(to, from, bytes); }
void* _intel_fast_memset(void* to, int value, size_t bytes) { return std::memset(to, value, bytes); }
void* __itt_domain_create_ptr__3_0 = nullptr;
void* __itt_event_create_ptr__3_0 = nullptr;
void* __itt_event_end_ptr__3_0 = nullptr;
void* __itt_event_start_ptr__3_0 = nullptr;
void* __itt_metadata_add_ptr__3_0 = nullptr;
void* __itt_string_handle_create_ptr__3_0 = nullptr;
void* __itt_task_begin_ptr__3_0 = nullptr;
void* __itt_task_end_ptr__3_0 = nullptr;
void* __itt_thread_set_name_ptr__3_0 = nullptr;

// At rank 0: writes an address for `join`, of at most 1 KiB.
void meet(char* address) {
  ccl::init();
  kvs = ccl::create_main_kvs();
  const ccl::kvs::address_type written = kvs->get_address();
  static_assert(sizeof(written) <= 1024);
  std::memcpy(address, written.data(), written.size());
}

void join(const char* address, int size, int rank) {
  if (!kvs) {
    ccl::init();
    ccl::kvs::address_type read;
    std::memcpy(read.data(), address, read.size());
    kvs = ccl::create_kvs(read);
  }
  communicator = std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, kvs));
}

void leave() {
  communicator.reset();
  kvs.reset();
}

void allreduce(void* tensor, size_t elements, int type) {
  ccl::allreduce(tensor, tensor, elements, kTypes[type], ccl::reduction::sum, *communicator).wait();
}

void broadcast(void* tensor, size_t elements, int type) {
  ccl::broadcast(tensor, elements, kTypes[type], 0, *communicator).wait();
}

void allgather(const void* tensor, void* result, size_t elements, int type) {
  const std::vector<size_t> counts(static_cast<size_t>(communicator->size()), elements);
  ccl::allgatherv(tensor, elements, result, counts, kTypes[type], *communicator).wait();
}

}  // extern "C"
