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

// A thread makes the four elements of one block of the whole tensor, and writes those that this part of it holds, of
// one row of the slice: threads [i per_row, (i + 1) per_row) have the blocks that row first_row + i touches.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    random_normal_kernel(RandomKey key, float stddev, uint64_t first_row, uint64_t per_row, int64_t elements, T* x) {
  const uint64_t index = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t row = first_row + index / per_row, start = key.first + row * key.stride;
  const uint64_t block = start / 4 + index % per_row;
  const uint4 words =
      philox(make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.tensor, key.purpose),
             make_uint2(static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)));
  double values[4];
  box_muller(words.x, words.y, values[0], values[1]);
  box_muller(words.z, words.w, values[2], values[3]);
  const int64_t column = static_cast<int64_t>(4 * block - start);  // Down to -3.
  const int64_t at = static_cast<int64_t>(row * key.row - key.offset) + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool in_row = column + i >= 0 && column + i < static_cast<int64_t>(key.row);
    if (in_row && at + i >= 0 && at + i < elements) x[at + i] = from_float<T>(static_cast<float>(values[i] * stddev));
  }
}

}  // namespace

absl::Status CudaKernels::random_normal(Stream& stream, RandomKey key, float stddev, Out x) {
  if (absl::Status status = check_random_normal(key, stddev, x); !status.ok()) return status;
  if (x.elements() == 0) return absl::OkStatus();
  const auto elements = static_cast<uint64_t>(x.elements());
  if (key.row == 0) {  // One row, that starts with the view.
    key.first += key.offset;
    key.offset = 0;
    key.row = elements;
  }
  const uint64_t first_row = key.offset / key.row, rows = (key.offset + elements - 1) / key.row - first_row + 1;
  const uint64_t per_row = (key.row + 2) / 4 + 1;  // The most blocks of four that so many elements touch.
  const auto threads = static_cast<int64_t>(rows * per_row);
  with_type(x.dtype, [&](auto type) {
    random_normal_kernel<<<static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads, 0, handle_of(stream)>>>(
        key, stddev, first_row, per_row, x.elements(), target<decltype(type)>(x));
  });
  return to_status(cudaGetLastError(), "random_normal");
}

}  // namespace telar::backend::cuda
