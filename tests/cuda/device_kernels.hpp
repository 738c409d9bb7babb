// Kernels of the tests: inputs made on the device, results compared there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace flashkda::test {

// bf16 numbers, uniform in low .. high: a hash of seed and the element's index.
void fill_uniform_bf16(void* data, int64_t count, float low, float high, uint64_t seed);

// Adds the number of differing 4-byte words to *differences (device memory). Asynchronous on the stream.
void count_differences(const void* a, const void* b, size_t bytes, unsigned long long* differences,
                       cudaStream_t stream);

}  // namespace flashkda::test
