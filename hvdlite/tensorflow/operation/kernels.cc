// Two operations of TensorFlow on its C API: one starts a collective, one hands out its results. Neither waits.
//
// No header of TensorFlow is needed, so the file compiles wherever there is a compiler: the functions below are part of
// TensorFlow's stable C interface, and are found in its libraries when this one is loaded. The kernels only pass
// tensors to Python, which runs the collective. A `TF_Tensor*` is a counted reference to memory; Python releases each
// reference that it gets.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

extern "C" {
struct TF_OpDefinitionBuilder;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char* attribute);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char* input);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char* output);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool is_stateful);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*)(TF_ShapeInferenceContext*, TF_Status*));
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*, TF_Status*);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);

TF_KernelBuilder* TF_NewKernelBuilder(const char* operation, const char* device,
                                      void* (*make)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*), void (*remove)(void*));
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder*, TF_Status*);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char* name, int32_t* list_size,
                                         int32_t* total_size, TF_Status*);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction*, const char* name, char* value, size_t max_length,
                                           TF_Status*);

int TF_NumInputs(TF_OpKernelContext*);
void TF_GetInput(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
void TF_SetOutput(TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);

TF_Tensor* TF_NewTensor(int dtype, const int64_t* extents, int dimensions, void* data, size_t nbytes,
                        void (*release)(void* data, size_t nbytes, void* argument), void* argument);
TF_Tensor* TF_AllocateTensor(int dtype, const int64_t* extents, int dimensions, size_t nbytes);
void TF_DeleteTensor(TF_Tensor*);
int TF_TensorType(const TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int dimension);
void* TF_TensorData(const TF_Tensor*);
size_t TF_TensorByteSize(const TF_Tensor*);

TF_Status* TF_NewStatus();
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, int code, const char* text);
int TF_GetCode(const TF_Status*);
}

namespace {

constexpr int kString = 7;     // TF_STRING
constexpr int kInt64 = 9;      // TF_INT64
constexpr int kCancelled = 1;  // TF_CANCELLED
constexpr int kExhausted = 8;  // TF_RESOURCE_EXHAUSTED
constexpr int kMaxDimensions = 16;

/// A tensor as Python reads it. Extents beyond kMaxDimensions are left out.
struct View {
  TF_Tensor* tensor;
  void* data;
  int64_t nbytes;
  int32_t dtype;
  int32_t dimensions;
  int64_t extents[kMaxDimensions];
};

/// Starts the collective that `call` describes, takes over the tensors, and returns its ticket; 0 if Python raised.
/// `queue` gets the serialized handle of the ticket's queue, valid as long as the ticket.
using Start = int64_t (*)(const char* call, int64_t length, int32_t count, const View* inputs, const char** queue,
                          int64_t* queue_nbytes);
/// Sets the results of a ticket as outputs of `context`, or makes it fail.
using Finish = void (*)(int64_t ticket, TF_OpKernelContext* context);

Start start_in_python = nullptr;
Finish finish_in_python = nullptr;

class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  ~Status() { TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  operator TF_Status*() const { return status_; }
  bool is_ok() const { return TF_GetCode(status_) == 0; }

 private:
  TF_Status* status_;
};

View view_of(TF_Tensor* tensor) {
  View view{};
  view.tensor = tensor;
  view.data = TF_TensorData(tensor);
  view.nbytes = static_cast<int64_t>(TF_TensorByteSize(tensor));
  view.dtype = TF_TensorType(tensor);
  view.dimensions = TF_NumDims(tensor);
  for (int index = 0; index < view.dimensions && index < kMaxDimensions; ++index) {
    view.extents[index] = TF_Dim(tensor, index);
  }
  return view;
}

/// The tickets of runs that are over. TensorFlow drops the output of a start when its run has ended in any way.
class Ended {
 public:
  void add(int64_t ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tickets_.push_back(ticket);
  }
  int32_t take(int64_t* tickets, int32_t limit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    int32_t count = 0;
    for (; count < limit && !tickets_.empty(); ++count) {
      tickets[count] = tickets_.back();
      tickets_.pop_back();
    }
    return count;
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> tickets_;
};

Ended& ended() {
  static auto* tickets = new Ended;  // never destroyed: TensorFlow may drop tensors when the process exits
  return *tickets;
}

/// The memory of a start's output. TensorFlow copies memory that is aligned to less.
struct alignas(64) Ticket {
  int64_t number;
};

void drop_ticket(void* data, size_t, void*) {
  auto* ticket = static_cast<Ticket*>(data);
  ended().add(ticket->number);
  delete ticket;
}

void* make_start(TF_OpKernelConstruction* construction) {
  Status status;
  int32_t is_list = 0, length = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, "call", &is_list, &length, status);
  auto* call = new std::string(static_cast<size_t>(length > 0 ? length : 0), '\0');
  TF_OpKernelConstruction_GetAttrString(construction, "call", call->data(), call->size(), status);
  return call;
}

void remove_start(void* call) { delete static_cast<std::string*>(call); }

/// An element of a tensor of strings, as `TF_TString` lays it out, with the characters at an offset from itself.
struct Text {
  uint32_t length_and_kind;
  uint32_t offset;
  uint32_t count;
  uint8_t unused[12];
};
constexpr uint32_t kAtOffset = 2;  // TF_TSTR_OFFSET

TF_Tensor* text_tensor(const char* characters, size_t length) {
  TF_Tensor* tensor = TF_AllocateTensor(kString, nullptr, 0, sizeof(Text) + length);
  if (tensor == nullptr) return nullptr;
  auto* text = static_cast<Text*>(TF_TensorData(tensor));
  *text = Text{static_cast<uint32_t>(length) << 2 | kAtOffset, sizeof(Text), 0, {}};
  std::memcpy(text + 1, characters, length);
  return tensor;
}

void start(void* argument, TF_OpKernelContext* context) {
  Status status;
  std::vector<View> inputs;
  const int count = TF_NumInputs(context);
  inputs.reserve(static_cast<size_t>(count));
  for (int index = 0; index < count && status.is_ok(); ++index) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context, index, &tensor, status);
    if (status.is_ok()) inputs.push_back(view_of(tensor));
  }
  if (!status.is_ok()) {
    for (const View& view : inputs) TF_DeleteTensor(view.tensor);
    TF_OpKernelContext_Failure(context, status);
    return;
  }
  const auto& call = *static_cast<std::string*>(argument);
  const char* queue = nullptr;
  int64_t queue_nbytes = 0;
  const int64_t number = start_in_python(call.data(), static_cast<int64_t>(call.size()),
                                         static_cast<int32_t>(inputs.size()), inputs.data(), &queue, &queue_nbytes);
  if (number == 0) {
    TF_SetStatus(status, kCancelled, "a collective was interrupted while it started");
    TF_OpKernelContext_Failure(context, status);
    return;
  }
  auto* ticket = new Ticket{number};
  TF_Tensor* output = TF_NewTensor(kInt64, nullptr, 0, ticket, sizeof(int64_t), drop_ticket, nullptr);
  TF_SetOutput(context, 0, output, status);
  TF_Tensor* handle = text_tensor(queue, static_cast<size_t>(queue_nbytes));
  if (handle == nullptr) {
    TF_SetStatus(status, kExhausted, "there is no memory for the handle of a queue");
  } else {
    if (status.is_ok()) TF_SetOutput(context, 1, handle, status);
    TF_DeleteTensor(handle);
  }
  TF_DeleteTensor(output);  // last: without this reference the ticket could be given up, and its queue destroyed
  if (!status.is_ok()) TF_OpKernelContext_Failure(context, status);
}

void finish(void*, TF_OpKernelContext* context) {
  Status status;
  TF_Tensor* input = nullptr;
  TF_GetInput(context, 0, &input, status);
  if (!status.is_ok()) {
    TF_OpKernelContext_Failure(context, status);
    return;
  }
  const int64_t ticket = *static_cast<int64_t*>(TF_TensorData(input));
  TF_DeleteTensor(input);
  finish_in_python(ticket, context);
}

/// Python sets the known shapes.
void infer_nothing(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

TF_OpDefinitionBuilder* stateful(const char* name) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_nothing);
  return builder;
}

int registered() {
  Status status;
  TF_OpDefinitionBuilder* builder = stateful("HvdliteStart");
  TF_OpDefinitionBuilderAddAttr(builder, "Tin: list(type) >= 0");
  TF_OpDefinitionBuilderAddAttr(builder, "call: string");
  TF_OpDefinitionBuilderAddInput(builder, "inputs: Tin");
  TF_OpDefinitionBuilderAddOutput(builder, "ticket: int64");
  TF_OpDefinitionBuilderAddOutput(builder, "queue: string");
  TF_RegisterOpDefinition(builder, status);
  if (!status.is_ok()) return TF_GetCode(status);

  builder = stateful("HvdliteFinish");
  TF_OpDefinitionBuilderAddAttr(builder, "Tout: list(type) >= 0");
  TF_OpDefinitionBuilderAddAttr(builder, "N: int >= 0");
  TF_OpDefinitionBuilderAddInput(builder, "ticket: int64");
  TF_OpDefinitionBuilderAddInput(builder, "news: bool");
  TF_OpDefinitionBuilderAddInput(builder, "queues: N * resource");
  TF_OpDefinitionBuilderAddOutput(builder, "outputs: Tout");
  TF_RegisterOpDefinition(builder, status);
  if (!status.is_ok()) return TF_GetCode(status);

  TF_RegisterKernelBuilder("HvdliteStart", TF_NewKernelBuilder("HvdliteStart", "CPU", make_start, start, remove_start),
                           status);
  if (!status.is_ok()) return TF_GetCode(status);
  TF_RegisterKernelBuilder("HvdliteFinish", TF_NewKernelBuilder("HvdliteFinish", "CPU", nullptr, finish, nullptr),
                           status);
  return TF_GetCode(status);
}

// TensorFlow looks for new operations when it has loaded a library, so they are registered while it is loaded.
const int registration = registered();

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

/// Sets Python's functions. Returns 0, or the code of the error of the registration.
EXPORTED int32_t hvdlite_tensorflow_connect(Start start, Finish finish) {
  start_in_python = start;
  finish_in_python = finish;
  return registration;
}

/// Makes an uninitialised tensor; null if there is no memory. Called from any thread.
EXPORTED TF_Tensor* hvdlite_tensorflow_allocate(int32_t dtype, int32_t dimensions, const int64_t* extents,
                                                int64_t nbytes, void** data) {
  TF_Tensor* tensor = TF_AllocateTensor(dtype, extents, dimensions, static_cast<size_t>(nbytes));
  *data = tensor == nullptr ? nullptr : TF_TensorData(tensor);
  return tensor;
}

EXPORTED void hvdlite_tensorflow_release(TF_Tensor* tensor) { TF_DeleteTensor(tensor); }

/// Makes `tensor` the output `index` of a running kernel. Returns 0 or the code of an error.
EXPORTED int32_t hvdlite_tensorflow_output(TF_OpKernelContext* context, int32_t index, const TF_Tensor* tensor) {
  Status status;
  TF_SetOutput(context, index, tensor, status);
  return TF_GetCode(status);
}

/// Writes at most `limit` tickets whose runs are over, each once. Returns their number.
EXPORTED int32_t hvdlite_tensorflow_ended(int64_t* tickets, int32_t limit) { return ended().take(tickets, limit); }

/// Makes a running kernel fail.
EXPORTED void hvdlite_tensorflow_fail(TF_OpKernelContext* context, int32_t code, const char* text) {
  Status status;
  TF_SetStatus(status, code, text);
  TF_OpKernelContext_Failure(context, status);
}
