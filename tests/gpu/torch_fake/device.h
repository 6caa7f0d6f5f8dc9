// CUDA tensors for a PyTorch that was built without CUDA: their device, streams and memory are those of the fake
// driver.
//
// Tensors are PyTorch's own, with the dispatch key of CUDA. An operator runs on the CPU, on the mapping of its tensors'
// memory that the fake GPU has, after all that the thread's current stream was given; what the host touches by itself
// is fatal. Copies within a GPU are in the stream's order, as on a real one.
#pragma once

#include <ATen/ATen.h>

#include "fake.h"

// The stream to which the calling thread gives work on GPU `device`.
CUstream fake_current_stream(int device);
// Where PyTorch gets memory of the current GPU. As in PyTorch's own allocator, memory that is freed is given out again
// in the stream that was current when it was allocated, at once unless it was recorded on other streams.
c10::Allocator* fake_allocator();
void fake_record(const c10::DataPtr& data, CUstream stream);
// Waits until the current stream of GPU `device` has done all that it was given.
void fake_settle(int device);
// Copies in the current stream of GPU `device`.
void fake_copy(int device, CUdeviceptr target, CUdeviceptr source, size_t nbytes);
// Raises an error of PyTorch's unless `status` is success.
void fake_check(int status, const char* what);
