// The greatest magnitude of what the threads of a grid have seen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {

// One a thread. Magnitudes are compared as whole numbers: NaN is above infinity, and that above all else.
template <typename T>
class Greatest {
 public:
  template <int kN>
  __device__ void take(const Pack<T, kN>& pack) {
    if constexpr (sizeof(T) == 2) {  // Two at a time.
      static_assert(kN % 2 == 0);
#pragma unroll
      for (int i = 0; i < kN; i += 2) {
        uint32_t pair;
        memcpy(&pair, &pack.values[i], sizeof(pair));
        seen_ = __vmaxu2(seen_, pair & 0x7fff7fffu);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kN; ++i) seen_ = max(seen_, __float_as_uint(pack.values[i]) & 0x7fffffffu);
    }
  }
  // By all threads of a block of whole warps, once: *amax, which is cleared before the launch, becomes the greatest of
  // all blocks', none above `most`, the bits of an f32.
  __device__ void publish(float* amax, uint32_t most = 0xffffffffu) const {
    __shared__ uint32_t of_warps[32];
    gather(of_warps);
    if (threadIdx.x >= 32) return;
    const uint32_t mine = threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0;
    const uint32_t of_block = min(__reduce_max_sync(0xffffffffu, mine), most);
    // Most blocks have nothing greater to say, and a read is cheaper than an atomic on an address that all want.
    if (threadIdx.x == 0 && of_block > *reinterpret_cast<volatile unsigned*>(amax)) {
      atomicMax(reinterpret_cast<unsigned*>(amax), of_block);
    }
  }

  // By all threads of a block, once: the bits of its greatest as an f32. `of_warps` is shared memory.
  template <int kWarps>
  __device__ uint32_t of_block(uint32_t (&of_warps)[kWarps]) const {
    gather(of_warps);
    uint32_t greatest = of_warps[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) greatest = max(greatest, of_warps[w]);
    return greatest;
  }

  // As publish(), by a whole warp.
  __device__ void publish_warp(float* amax) const {
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, float_bits());
    if (threadIdx.x % 32 == 0 && of_warp > *reinterpret_cast<volatile unsigned*>(amax)) {
      atomicMax(reinterpret_cast<unsigned*>(amax), of_warp);
    }
  }

 private:
  __device__ void gather(uint32_t* of_warps) const {
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, float_bits());
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
  }

  // Of the greater one, as an f32.
  __device__ uint32_t float_bits() const {
    if constexpr (sizeof(T) == 2) {
      const auto bits = static_cast<uint16_t>(max(seen_ & 0xffffu, seen_ >> 16));
      T value;
      memcpy(&value, &bits, sizeof(value));
      return __float_as_uint(to_float(value)) & 0x7fffffffu;
    } else {
      return seen_;
    }
  }

  uint32_t seen_ = 0;
};

template <typename T>
__global__ void clear_kernel(T* value) {
  *value = 0;
}

// Before the launch; absent: nothing to do. A kernel and no memset: a captured step that is nothing but kernels is
// handed to the device whole, while memsets cut it into hundreds of pieces that fill the launch queue, so that the host
// stands in the next step's launch until the one before is long over.
inline cudaError_t clear_greatest(cudaStream_t stream, const View& amax) {
  if (amax.absent()) return cudaSuccess;
  clear_kernel<<<1, 1, 0, stream>>>(reinterpret_cast<float*>(amax.data));
  return cudaGetLastError();
}

}  // namespace telar::backend::cuda
