// Tensor maps: how the copy engine sees a [B,T,heads,128] input in bf16.
#pragma once

#include <cuda.h>

#include "flashkda/flashkda.h"

namespace flashkda::cuda::sm90 {

// Whether a map of the tensor exists: no dimension of more than one element has stride 0, and extents and strides are
// in the engine's range.
bool mappable(const fkda_tensor& t);

// Boxes are 32 tokens of one head, 64 channels, with the 128-byte swizzle. Throws Error.
CUtensorMap make_tensor_map(const fkda_tensor& t);

}  // namespace flashkda::cuda::sm90
