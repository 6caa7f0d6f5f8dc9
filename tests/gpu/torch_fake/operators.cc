// PyTorch's operators on the memory of fake GPUs.

#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/TensorShape.h>
#include <torch/library.h>

#include <vector>

#include "device.h"

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

at::SparseTensorImpl* sparse_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor on_host(const at::Tensor& tensor);

at::Tensor sparse_on_host(const at::Tensor& tensor) {
  auto* parts = sparse_impl(tensor);
  return at::_sparse_coo_tensor_unsafe(on_host(parts->indices()), on_host(parts->values()), tensor.sizes(),
                                       std::nullopt, std::nullopt, std::nullopt, std::nullopt, parts->coalesced());
}

// The same elements as the GPU sees them, as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return sparse_on_host(tensor);
  auto& storage = tensor.storage();
  size_t nbytes = storage.nbytes();
  if (!nbytes) return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  void* own = fake_own(reinterpret_cast<CUdeviceptr>(storage.data_ptr().get()), nbytes);
  TORCH_CHECK(own, "the tensor's memory on the GPU was freed");
  c10::Storage mapped(c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(own, c10::kCPU),
                      c10::GetAllocator(c10::kCPU), true);
  auto made =
      at::detail::make_tensor<at::TensorImpl>(std::move(mapped), DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

bool is_on_gpu(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

at::Tensor to_gpu(const at::Tensor& result, c10::Device device);

// Makes the parts of the sparse `result` those of `tensor`.
void adopt_parts(const at::Tensor& tensor, const at::Tensor& result, c10::Device device) {
  auto *impl = sparse_impl(tensor), *parts = sparse_impl(result);
  impl->resize_(parts->sparse_dim(), parts->dense_dim(), result.sizes());
  impl->set_indices_and_values_unsafe(to_gpu(parts->indices(), device), to_gpu(parts->values(), device));
  impl->set_coalesced(parts->coalesced());
}

at::Tensor to_gpu(const at::Tensor& result, c10::Device device) {
  if (!result.defined()) return result;
  if (result.is_sparse()) {
    auto made = at::detail::make_tensor<at::SparseTensorImpl>(DispatchKeySet(DispatchKey::SparseCUDA), result.dtype());
    adopt_parts(made, result, device);
    return made;
  }
  auto options = result.options().device(device);
  auto made = result.is_non_overlapping_and_dense() ? at::empty_strided(result.sizes(), result.strides(), options)
                                                    : at::empty(result.sizes(), options);
  on_host(made).copy_(result);
  return made;
}

// One call: its tensors of the GPU, and what stands for them on the CPU.
struct Call {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  std::optional<c10::Device> device;

  at::Tensor taken(const at::Tensor& tensor) {
    if (!is_on_gpu(tensor)) return tensor;
    if (!device) fake_settle(tensor.device().index());
    device = tensor.device();
    pairs.emplace_back(tensor, on_host(tensor));
    return pairs.back().second;
  }
  at::Tensor returned(const at::Tensor& result) const {
    for (auto& [tensor, mapped] : pairs) {
      if (mapped.is_same(result)) return tensor;
    }
    return to_gpu(result, *device);
  }
  // What the call has done to its arguments beside writing elements.
  void adopt_changes() const {
    for (auto& [tensor, mapped] : pairs) {
      if (tensor.is_sparse()) adopt_parts(tensor, mapped, tensor.device());
      if (tensor.is_sparse() || tensor.sizes() == mapped.sizes()) continue;
      auto made = to_gpu(mapped, tensor.device());
      tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), 0);
    }
  }
};

template <typename Each>
void for_each_tensor(c10::IValue& value, Each each) {
  if (value.isTensor()) {
    value = each(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> found;
    for (auto& tensor : value.toTensorVector()) found.push_back(each(tensor));
    value = c10::List<at::Tensor>(found);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> found;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      found.push_back(tensor ? std::optional(each(*tensor)) : tensor);
    }
    value = found;
  }
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call;
  size_t begin = stack->size() - op.schema().arguments().size();
  for (size_t index = begin; index < stack->size(); index++) {
    auto& value = (*stack)[index];
    for_each_tensor(value, [&](const at::Tensor& tensor) { return call.taken(tensor); });
    if (value.isDevice() && value.toDevice().is_cuda()) {
      call.device = value.toDevice();
      value = c10::Device(c10::kCPU);
    }
  }
  op.callBoxed(stack);
  if (op.schema().is_mutable()) call.adopt_changes();
  for (size_t index = begin; index < stack->size(); index++) {
    for_each_tensor((*stack)[index], [&](const at::Tensor& tensor) { return call.returned(tensor); });
  }
}

// CUDA's needs the moments that were saved, even those that CPUs' does not read.
void batch_norm_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const int save_mean = 5;
  const auto& mean = (*stack)[stack->size() - op.schema().arguments().size() + save_mean];
  TORCH_CHECK(mean.isTensor() && mean.toTensor().defined(), "save_mean should always be defined");
  run_on_host(op, stack);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, fake_allocator(), DispatchKeySet(DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, fake_allocator(), DispatchKeySet(DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

at::Tensor& copy_(at::Tensor& target, const at::Tensor& source, bool) {
  bool is_memory = is_on_gpu(target) && is_on_gpu(source) && target.device() == source.device() &&
                   target.dtype() == source.dtype() && target.sizes() == source.sizes() && target.is_contiguous() &&
                   source.is_contiguous() && target.is_neg() == source.is_neg() && !source.is_conj() &&
                   !target.is_conj();
  if (is_memory) {
    int device = target.device().index();
    auto address = [](const at::Tensor& tensor) { return reinterpret_cast<CUdeviceptr>(tensor.data_ptr()); };
    if (target.nbytes()) fake_copy(device, address(target), address(source), target.nbytes());
    return target;
  }
  auto host = [](const at::Tensor& tensor) {
    if (!is_on_gpu(tensor)) return tensor;
    fake_settle(tensor.device().index());
    auto mapped = on_host(tensor);
    mapped._set_neg(tensor.is_neg());
    mapped._set_conj(tensor.is_conj());
    return mapped;
  };
  host(target).copy_(host(source));
  return target;
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  c10::impl::VirtualGuardImpl(c10::kCUDA).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

at::Tensor& set_(at::Tensor& tensor, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

at::Tensor view(const at::Tensor& tensor, at::IntArrayRef size) { return at::native::view(tensor, size); }

at::Tensor as_strided(const at::Tensor& tensor, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor& tensor, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(tensor, size, stride);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("record_stream", &record_stream);
  library.impl("set_.source_Storage_storage_offset", &set_);
  library.impl("view", &view);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("native_batch_norm_backward", torch::CppFunction::makeFromBoxedFunction<&batch_norm_backward>());
}

TORCH_LIBRARY_IMPL(aten, SparseCUDA, library) {  // those that have a kernel for all other layouts
  for (auto name : {"sparse_dim", "dense_dim", "is_coalesced", "_nnz", "values", "indices"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

TORCH_LIBRARY_IMPL(_, SparseCUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

}  // namespace
