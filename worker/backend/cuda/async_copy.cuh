// Copies from global to shared memory that run while the thread goes on.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace telar::backend::cuda {

// 16 bytes from global to shared memory, both so aligned, or as many zeros. The thread sees them behind
// wait_for_copies() of the group that they were committed in.
__device__ inline void copy_pack_async(void* to, const void* from, bool is_there) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last kLater groups.
template <int kLater>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

}  // namespace telar::backend::cuda
