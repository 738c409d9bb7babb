// Kernels that start before the one in front of them in the stream has ended (programmatic dependent launch, sm_90).
// PTX ISA, "griddepcontrol". Elsewhere both do nothing, and nothing may be launched early (launch.hpp).
#pragma once

namespace flashkda::cuda::ptx {

// The next kernel's blocks may take what room this one's leave, once all of these have come here.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernel in front has ended and what it wrote can be read. Every block of a kernel that is launched
// early must come here, or the kernel behind it would not wait for the one in front.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace flashkda::cuda::ptx
