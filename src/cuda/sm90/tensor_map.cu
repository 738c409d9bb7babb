#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.hpp"
#include "cuda/error.hpp"
#include "cuda/sm90/stage.cuh"
#include "cuda/sm90/tensor_map.hpp"

namespace flashkda::cuda::sm90 {
namespace {

// [B,T,heads,128] as the engine counts dimensions: channels first.
struct Geometry {
  cuuint64_t extent[4], stride[3];  // bytes; of dimension 1 and on

  explicit Geometry(const fkda_tensor& t) {
    extent[0] = static_cast<cuuint64_t>(t.shape[3]);
    for (int d = 1; d < 4; ++d) {
      const int from = 3 - d;
      extent[d] = static_cast<cuuint64_t>(t.shape[from]);
      // The stride of a single element means nothing and may be anything.
      stride[d - 1] = t.shape[from] > 1 ? static_cast<cuuint64_t>(t.stride[from] * dtype_size(t.dtype)) : 16;
    }
  }
};

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: the library links no driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found),
        "cudaGetDriverEntryPoint");
#endif
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw_error(FKDA_DEVICE_ERROR, "cuda: the driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

bool mappable(const fkda_tensor& t) {
  const Geometry g(t);
  for (const cuuint64_t extent : g.extent) {
    if (extent == 0 || extent > UINT32_MAX) return false;
  }
  for (const cuuint64_t stride : g.stride) {
    if (stride == 0 || stride % 16 != 0 || stride >= cuuint64_t{1} << 40) return false;
  }
  return true;
}

CUtensorMap make_tensor_map(const fkda_tensor& t) {
  static const Encode encode = find_encode();
  const Geometry g(t);
  const cuuint32_t box[4] = {64, 1, kChunk, 1}, step[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, t.data, g.extent, g.stride, box, step,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw_error(FKDA_DEVICE_ERROR, "cuda: cuTensorMapEncodeTiled failed with %d", static_cast<int>(result));
  }
  return map;
}

}  // namespace flashkda::cuda::sm90
