// The rows that a norm's backward goes over, fetched ahead into shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "worker/backend/cuda/async_copy.cuh"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {

// The rows that a thread of the backward works on: this one, and the next ones on their way. Each thread has packs of
// dy, x and dx for itself, in shared memory where they are aligned, and else reads them where they are.
template <int kPacks, bool kVector, typename T>
struct NormRows {
  static constexpr int kN = kPackSize<T>;
  static constexpr int kTensors = 3;
  static constexpr bool kStaged = kVector && kPacks <= 4;
  static constexpr int kStages = kPacks <= 2 ? 3 : 2;
  static constexpr size_t kThreadBytes = kStaged ? kStages * kTensors * kPacks * sizeof(uint4) : 0;

  const T* tensors[kTensors];  // dy, x, dx.
  int64_t rows;
  int width;
  uint4* stages;
  int stage = 0;
  int64_t start = 0;

  __device__ int at(int pack) const { return static_cast<int>(pack * blockDim.x + threadIdx.x) * kN; }
  __device__ uint4* slot(int of_stage, int tensor, int pack) const {
    return stages + ((of_stage * kTensors + tensor) * kPacks + pack) * blockDim.x + threadIdx.x;
  }
  // Nothing where there is no such row, which counts as a group all the same.
  __device__ void fetch(int to_stage, int64_t row) const {
    if constexpr (kStaged) {
      if (row < rows) {
#pragma unroll
        for (int t = 0; t < kTensors; ++t) {
          const T* from = tensors[t] + row * width;
#pragma unroll
          for (int p = 0; p < kPacks; ++p) {
            const bool is_there = at(p) < width;
            copy_pack_async(slot(to_stage, t, p), from + (is_there ? at(p) : 0), is_there);
          }
        }
      }
      commit_copies();
    }
  }
  // The stage before this one is what was read last.
  __device__ void start_row(int64_t row, int64_t stride) {
    start = row * width;
    fetch(stage == 0 ? kStages - 1 : stage - 1, row + (kStages - 1) * stride);
    if constexpr (kStaged) wait_for_copies<kStages - 1>();
  }
  __device__ void end_row() { stage = stage == kStages - 1 ? 0 : stage + 1; }
  __device__ Pack<T, kN> read(int tensor, int pack) const {
    if constexpr (kStaged) {
      const uint4 word = *slot(stage, tensor, pack);
      Pack<T, kN> value;
      memcpy(&value, &word, sizeof(word));
      return value;
    } else {
      return load_pack<kVector, kN>(tensors[tensor] + start, at(pack), width);
    }
  }
};

}  // namespace telar::backend::cuda
