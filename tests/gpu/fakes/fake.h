// What the fakes offer each other and the tests, beside the functions that they fake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "recorded.h"

extern "C" {
// The next call of the function `name` in this process does nothing and returns `status`.
void fake_fail(const char* name, int status);
// The status for this call of `name`; 0 if it is to work.
int fake_failing(const char* name);
// A stream that is held begins nothing.
void fake_hold(CUstream stream);
void fake_release(CUstream stream);
// Between them a graph captures the stream. False if something has invalidated the capture.
void fake_begin_capture(CUstream stream);
bool fake_end_capture(CUstream stream);
// Copies from and to memory of the GPU at once, whatever its streams do. False for other addresses.
bool fake_read(CUdeviceptr address, void* to, size_t nbytes);
bool fake_write(CUdeviceptr address, const void* from, size_t nbytes);
// Memory that no stream is asked for, and that is freed at once, whoever still uses it.
CUdeviceptr fake_allocate(int device, size_t nbytes);
void fake_free(CUdeviceptr address);
// True if all streams that were destroyed have done what they were given before.
bool fake_is_settled();
// The number of streams, events, contexts and allocations that were made and not given back.
int fake_streams();
int fake_events();
int fake_contexts();
int fake_contexts_on(int device);
int fake_allocations();
int fake_priority(CUstream stream);
int fake_current_device();
bool fake_is_initialized();
int fake_modules();
// Has `run` run the kernels: PTX, the kernel's name, blocks, threads of each, its parameter and the bytes of that. It
// returns a status. Any but success stays: the GPU is broken, as a real one is after an error, until it is healed.
typedef int (*fake_interpreter)(const char*, const char*, unsigned, unsigned, const void*, size_t);
void fake_interpret(fake_interpreter run);
void fake_heal();
// Where the memory of a GPU begins, as callers see it and as the GPU does, and its bytes.
size_t fake_memory(int device, CUdeviceptr* seen, void** own);
// Fills in the first byte and the length of each allocation on a GPU, in order, of `room` at most; their number.
size_t fake_extents(int device, CUdeviceptr* begins, uint64_t* lengths, size_t room);
}

// Where a device itself sees its memory, which the host has no access to; null for other addresses.
void* fake_own(CUdeviceptr address, size_t nbytes);
// Gives `stream` something to do, in its order. False if there is no such stream.
bool fake_enqueue(CUstream stream, std::function<void()> task);
