// y[i] = f(x[i]...) over packs, f in float.
#pragma once

#include <algorithm>

#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {

inline constexpr int kMapThreads = 256;
// Set by the widest type, so that the widest accesses are 16 bytes and neighbours in neighbouring threads.
template <typename... T>
inline constexpr int kMapPack = 16 / std::max({sizeof(T)...});

template <bool kVector, int kN, typename Function, typename To, typename... From>
__device__ void map_pack(int64_t at, int64_t end, const Function& f, To* y, const From*... x) {
  const auto apply = [&](const Pack<From, kN>&... packs) {
    float results[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) results[i] = f(packs.get(i)...);
    store_pack<kVector, kN>(y, at, end, rounded<To>(results));
  };
  apply(load_pack<kVector, kN>(x, at, end)...);
}

template <bool kVector, typename Function, typename To, typename... From>
__global__ void __launch_bounds__(kMapThreads) map_kernel(int64_t elements, Function f, To* y, const From*... x) {
  constexpr int kN = kMapPack<To, From...>;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * kN;
  if (at >= elements) return;
  if (kVector && at + kN <= elements) {
    map_pack<true, kN>(at, at + kN, f, y, x...);
  } else {
    map_pack<false, kN>(at, elements, f, y, x...);
  }
}

// f: a struct with `__device__ float operator()(float...) const`. y may be one of x.
template <typename Function, typename To, typename... From>
cudaError_t map(cudaStream_t stream, int64_t elements, Function f, To* y, const From*... x) {
  if (elements == 0) return cudaSuccess;
  constexpr int kN = kMapPack<To, From...>;
  const unsigned blocks = static_cast<unsigned>(ceil_div(elements, kMapThreads * kN));
  if (fits_packs<kN>(y) && (fits_packs<kN>(x) && ...)) {
    map_kernel<true><<<blocks, kMapThreads, 0, stream>>>(elements, f, y, x...);
  } else {
    map_kernel<false><<<blocks, kMapThreads, 0, stream>>>(elements, f, y, x...);
  }
  return cudaGetLastError();
}

}  // namespace telar::backend::cuda
