#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 256;

// Philox4x32-10 of Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
__device__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t even = 0xd2511f53u, odd = 0xcd9e8d57u;
    counter = make_uint4(__umulhi(odd, counter.z) ^ counter.y ^ key.x, odd * counter.z,
                         __umulhi(even, counter.x) ^ counter.w ^ key.y, even * counter.x);
    key = make_uint2(key.x + 0x9e3779b9u, key.y + 0xbb67ae85u);
  }
  return counter;
}

// Two standard normals of two random words, by Box & Muller 1958. In double, as on the CPU, so that both devices round
// to the same floats but for a few whose last bit differs.
__device__ void box_muller(uint32_t a, uint32_t b, double& x, double& y) {
  constexpr double kUnit = 1.0 / 4294967296.0;
  const double radius = sqrt(-2.0 * log((a + 1.0) * kUnit));  // (0, 1], so the logarithm is finite.
  double sine, cosine;
  sincospi(2.0 * (b * kUnit), &sine, &cosine);
  x = radius * cosine;
  y = radius * sine;
}

// A thread makes the four elements of one block of the whole tensor, and writes those that this part of it holds.
template <typename T>
__global__ void __launch_bounds__(kThreads) random_normal_kernel(RandomKey key, float stddev, int64_t elements, T* x) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t block = key.first / 4 + static_cast<uint64_t>(index);
  const uint4 words =
      philox(make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.tensor, key.purpose),
             make_uint2(static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)));
  double values[4];
  box_muller(words.x, words.y, values[0], values[1]);
  box_muller(words.z, words.w, values[2], values[3]);
  const int64_t at = 4 * index - static_cast<int64_t>(key.first % 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (at + i >= 0 && at + i < elements) x[at + i] = from_float<T>(static_cast<float>(values[i] * stddev));
  }
}

}  // namespace

absl::Status CudaKernels::random_normal(Stream& stream, RandomKey key, float stddev, Out x) {
  if (absl::Status status = check_random_normal(stddev, x); !status.ok()) return status;
  if (x.elements() == 0) return absl::OkStatus();
  const int64_t blocks_of_four = ceil_div(x.elements() + static_cast<int64_t>(key.first % 4), 4);
  with_type(x.dtype, [&](auto type) {
    random_normal_kernel<<<static_cast<unsigned>(ceil_div(blocks_of_four, kThreads)), kThreads, 0, handle_of(stream)>>>(
        key, stddev, x.elements(), target<decltype(type)>(x));
  });
  return to_status(cudaGetLastError(), "random_normal");
}

}  // namespace telar::backend::cuda
