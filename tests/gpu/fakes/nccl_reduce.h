// Sums, products, minima, maxima and averages of elements of NCCL's types.
#pragma once

#include <cstddef>
#include <vector>

constexpr int kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4;

// Bytes of an element of `type`; 0 if NCCL has none such.
size_t size_of(int type);

// Writes the reduction of `inputs`, in their order, to `output`. Elements are multiplied by `factor` before, if it is
// not
// 1. 16-bit floats are added as 32-bit ones and rounded once.
void reduce(const std::vector<const void*>& inputs, void* output, size_t count, int type, int operation, double factor);

// Reads the scalar of a pre-multiplied sum.
double scalar_at(const void* address, int type);
