// Softmax cross entropy, a row by a block or a cluster of blocks that keeps it in shared memory: the logits are read
// once and their gradient written once. Where ranks hold slices of a row, a block reads one for its parts, and later
// reads it again to write the gradient.
#include <cooperative_groups.h>

#include <limits>

#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/fast_math.cuh"
#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"
#include "worker/backend/cuda/softmax_sum.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 512;                     // Of a block.
constexpr int kAhead = 4;                         // Packs that a thread asks for before it looks at the first.
constexpr int kSumThreads = 1024;                 // Of the one block that adds up what rows or tokens have.
constexpr size_t kTwoBlocks = size_t{112} << 10;  // Shared memory that leaves room for another block on the processor.
constexpr size_t kOneBlock = size_t{224} << 10;   // What is left of it beside the little that the kernels declare.

// Of the whole block, in a fixed order, on every thread.
__device__ MaxSum block_max_sum(MaxSum value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const MaxSum other{__shfl_down_sync(0xffffffffu, value.exponent, distance),
                       __shfl_down_sync(0xffffffffu, value.sum, distance)};
    value = combine(value, other);  // Of use on the lower lanes only; lane 0 has the warp's.
  }
  __shared__ float exponents[kThreads / 32], sums[kThreads / 32];
  if (threadIdx.x % 32 == 0) {
    exponents[threadIdx.x / 32] = value.exponent;
    sums[threadIdx.x / 32] = value.sum;
  }
  __syncthreads();
  MaxSum all{exponents[0], sums[0]};
  for (int warp = 1; warp < kThreads / 32; ++warp) all = combine(all, {exponents[warp], sums[warp]});
  return all;
}

// What a block wrote to shared memory before arrive() is seen by the whole cluster behind wait().
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Of the whole cluster, in the order of its blocks. No block may leave, or call this again, before a cluster_wait().
template <int kCluster>
__device__ MaxSum cluster_max_sum(MaxSum value) {
  __shared__ float2 of_block;
  if (threadIdx.x == 0) of_block = make_float2(value.exponent, value.sum);
  cluster_arrive();
  cluster_wait();
  MaxSum all;
#pragma unroll
  for (int rank = 0; rank < kCluster; ++rank) {
    const float2 other = *cooperative_groups::this_cluster().map_shared_rank(&of_block, rank);
    all = combine(all, {other.x, other.y});
  }
  cluster_arrive();
  return all;
}

// The gradients, but for the target's, of a thread's packs from `begin` on that end before `vocab`; returns the first
// that does not. `slot` is where the pack is in the cache.
template <bool kCached, int kStride, bool kVector, typename T>
__device__ int64_t write_whole_packs(T* row, int64_t begin, int64_t vocab, float exponent, float scale,
                                     const uint4* cache, int& slot) {
  constexpr int kN = kPackSize<T>;
#pragma unroll 4
  for (; begin + kN <= vocab; begin += kStride, slot += kThreads) {
    Pack<T, kN> pack;
    if constexpr (kCached) {
      memcpy(&pack, &cache[slot], sizeof(uint4));
    } else {
      pack = load_pack<kVector, kN, T>(row, begin, begin + kN);
    }
    float gradient[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) gradient[i] = fast_exp2(fmaf(pack.get(i), kLog2E, -exponent)) * scale;
    store_pack<kVector, kN>(row, begin, begin + kN, rounded<T>(gradient));
  }
  return begin;
}

// Blocks [x kCluster, (x + 1) kCluster): row x of [rows, pitch]; the blocks' threads take packs in turn. losses[row] =
// -log softmax(row)[target], 0 without a target. `logits` is read only, unless kGradient: then it becomes *loss_scale
// (null: 1) times d loss / d logits, out of shared memory if kCached: there a thread keeps what it has read for itself.
// The ends of the row are looked for behind the loops over all that is before them, and the target's gradient is
// written once more behind all others.
template <bool kGradient, bool kCached, int kCluster, bool kVector, typename T, typename Logits>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(const int32_t* targets, const float* count, const float* loss_scale, int64_t vocab,
                         int64_t pitch, Logits* logits, double* losses) {
  constexpr int kN = kPackSize<T>, kStride = kThreads * kCluster * kN;
  extern __shared__ uint4 cache[];
  const int64_t row_index = blockIdx.x / kCluster;
  const int rank = blockIdx.x % kCluster;
  const int64_t mine = (rank * kThreads + static_cast<int>(threadIdx.x)) * kN;
  Logits* row = logits + row_index * pitch;
  const int64_t label = targets[row_index];
  if (label < 0 || label >= vocab) {  // The whole cluster.
    if (rank == 0 && threadIdx.x == 0) losses[row_index] = 0.0;
    if constexpr (kGradient) {
      const Pack<T, kN> zeros{};
      for (int64_t at = mine; at < pitch; at += kStride) store_pack<kVector, kN>(row, at, pitch, zeros);
    }
    return;
  }
  const float at_label = to_float(row[label]);  // Before the barriers that come before anyone overwrites it.

  MaxSum all;
  int slot = threadIdx.x;
  int64_t begin = mine;
  const auto absorb_next = [&](auto count, int64_t first) {
    Pack<T, kN> packs[count.value];
#pragma unroll
    for (int a = 0; a < count.value; ++a) {
      const int64_t at = first + a * kStride;
      packs[a] = load_pack<kVector, kN, T>(row, at, at + kN);
    }
    if constexpr (kCached) {
#pragma unroll
      for (int a = 0; a < count.value; ++a) memcpy(&cache[slot + a * kThreads], &packs[a], sizeof(uint4));
      slot += count.value * kThreads;
    }
    all = absorb_packs(all, packs);
  };
  for (; begin + (kAhead - 1) * kStride + kN <= vocab; begin += kAhead * kStride) {
    absorb_next(std::integral_constant<int, kAhead>(), begin);
  }
  for (; begin + kN <= vocab; begin += kStride) absorb_next(std::integral_constant<int, 1>(), begin);
  for (int64_t first = begin; first < vocab; first += kAhead * kStride) {
    Pack<T, kN> packs[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) packs[a] = load_pack<kVector, kN, T>(row, first + a * kStride, pitch);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t at = first + a * kStride;
      if (at >= vocab) break;
      if constexpr (kCached) {
        memcpy(&cache[slot], &packs[a], sizeof(uint4));
        slot += kThreads;
      }
      float values[kN];
      const float maximum = widen(packs[a], vocab - at, values);
      all = absorb(all, values, maximum);
    }
  }
  all = block_max_sum(all);
  if constexpr (kCluster > 1) all = cluster_max_sum<kCluster>(all);
  if (rank == 0 && threadIdx.x == 0) {
    constexpr double kLn2 = 0.69314718055994530942;
    losses[row_index] = (log2(static_cast<double>(all.sum)) + all.exponent) * kLn2 - at_label;
  }

  if constexpr (kGradient) {
    const float slope = *count > 0.0f ? (loss_scale == nullptr ? 1.0f : *loss_scale) / *count : 0.0f;
    const float inverse_sum = 1.0f / all.sum;
    const float scale = inverse_sum * slope;
    slot = threadIdx.x;
    begin = write_whole_packs<kCached, kStride, kVector>(row, mine, vocab, all.exponent, scale, cache, slot);
    // By the thread that has just written it, unless the loop below does.
    const int64_t pack_of_label = label / kN;
    if ((pack_of_label + 1) * kN <= vocab && pack_of_label % (kThreads * kCluster) * kN == mine) {
      const float e = fast_exp2(fmaf(at_label, kLog2E, -all.exponent));
      row[label] = from_float<T>(fmaf(e, inverse_sum, -1.0f) * slope);
    }
#pragma unroll 2
    for (int64_t at = begin; at < pitch; at += kStride, slot += kThreads) {
      Pack<T, kN> pack{};
      if constexpr (kCached) {
        if (at < vocab) memcpy(&pack, &cache[slot], sizeof(uint4));
      } else {
        pack = load_pack<kVector, kN, T>(row, at, pitch);
      }
      float gradient[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) gradient[i] = fast_exp2(fmaf(pack.get(i), kLog2E, -all.exponent)) * scale;
      if (at <= label && label < at + kN) {
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          const float e = fast_exp2(fmaf(pack.get(i), kLog2E, -all.exponent));
          if (at + i == label) gradient[i] = fmaf(e, inverse_sum, -1.0f) * slope;
        }
      }
      if (at + kN > vocab) {
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          if (at + i >= vocab) gradient[i] = 0.0f;
        }
      }
      store_pack<kVector, kN>(row, at, pitch, rounded<T>(gradient));
    }
  }
  if constexpr (kCluster > 1) cluster_wait();
}

// Of the whole block, on every thread. Like fmaxf(), it passes over NaN.
__device__ float block_max(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask));
  __shared__ float of_warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) value = fmaxf(value, of_warp[warp]);
  return value;
}

// Block x: row x of [rows, pitch], of which `slice` has some columns; parts[3, rows] as softmax_parts() wants them.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_parts_kernel(const int32_t* targets, VocabSlice slice, int64_t pitch, const T* logits, float* parts) {
  constexpr int kN = kPackSize<T>, kStride = kThreads * kN;
  const int64_t row_index = blockIdx.x, rows = gridDim.x;
  const T* row = logits + row_index * pitch;
  const int64_t target = targets[row_index], column = target - slice.first;
  const bool here = target >= 0 && column >= 0 && column < slice.count;
  const float at_target = here ? to_float(row[column]) : 0.0f;
  MaxSum all;
  float maximum = -INFINITY;
  for (int64_t first = static_cast<int>(threadIdx.x) * kN; first < slice.count; first += kAhead * kStride) {
    Pack<T, kN> packs[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) packs[a] = load_pack<kVector, kN>(row, first + a * kStride, pitch);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t at = first + a * kStride;
      if (at >= slice.count) break;
      float values[kN];
      const float of_pack = widen(packs[a], slice.count - at, values);
      maximum = fmaxf(maximum, of_pack);
      all = absorb(all, values, of_pack);
    }
  }
  maximum = block_max(maximum);
  // To 2^(log2(e) (logit - maximum)), whatever log2(e) maximum rounds to. Nothing but -inf: a sum of 0, or of NaN.
  if (maximum > -INFINITY) all.sum *= fast_exp2(-fmaf(maximum, kLog2E, -all.exponent));
  const float sum = team_sum<kThreads>(all.sum);
  if (threadIdx.x > 0) return;
  parts[row_index] = maximum;
  parts[rows + row_index] = sum;
  parts[2 * rows + row_index] = at_target;
}

// What the parts[slices, 3, rows] of a row come to, with the target's logit. In the order of slices, so that every rank
// has the same bits.
struct RowSum {
  MaxSum all;
  float at_target = 0.0f;
  __device__ double loss() const {
    constexpr double kLn2 = 0.69314718055994530942;
    return fma(log2(static_cast<double>(all.sum)) + all.exponent, kLn2, -static_cast<double>(at_target));
  }
};
__device__ RowSum combine_parts(const float* parts, int64_t slices, int64_t rows, int64_t row) {
  float maximum = -INFINITY;
#pragma unroll 2
  for (int64_t i = 0; i < slices; ++i) maximum = fmaxf(maximum, parts[3 * i * rows + row]);
  RowSum result;
  result.all.exponent = fmaxf(result.all.exponent, maximum * kLog2E);
#pragma unroll 2
  for (int64_t i = 0; i < slices; ++i) {
    const float* part = parts + 3 * i * rows + row;
    const float weight = fast_exp2(fmaf(part[0], kLog2E, -result.all.exponent));
    result.all.sum = fmaf(part[rows], weight, result.all.sum);
    result.at_target += part[2 * rows];
  }
  return result;
}

// Block x: row x of [rows, pitch]: logits become *loss_scale (null: 1) times d loss / d logits, 0 outside the slice.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_parts_kernel(const int32_t* targets, const float* count, const float* loss_scale, VocabSlice slice,
                               const float* parts, int64_t slices, int64_t pitch, T* logits) {
  constexpr int kN = kPackSize<T>, kStride = kThreads * kN;
  const int64_t row_index = blockIdx.x;
  const int64_t mine = static_cast<int>(threadIdx.x) * kN;
  T* row = logits + row_index * pitch;
  Pack<T, kN> packs[kAhead];
  const auto load_packs = [&](int64_t first) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) packs[a] = load_pack<kVector, kN, T>(row, first + a * kStride, pitch);
  };
  load_packs(mine);  // On their way while the parts are waited for.
  const int64_t target = targets[row_index], column = target - slice.first;
  if (target < 0 || target >= slice.vocab) {  // The whole block.
    const Pack<T, kN> zeros{};
    for (int64_t at = mine; at < pitch; at += kStride) store_pack<kVector, kN>(row, at, pitch, zeros);
    return;
  }
  const RowSum sum = combine_parts(parts, slices, gridDim.x, row_index);
  const float slope = *count > 0.0f ? (loss_scale == nullptr ? 1.0f : *loss_scale) / *count : 0.0f;
  const float inverse_sum = 1.0f / sum.all.sum, scale = inverse_sum * slope, exponent = sum.all.exponent;
  for (int64_t first = mine; first < pitch; first += kAhead * kStride) {
    if (first > mine) load_packs(first);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t at = first + a * kStride;
      if (at >= pitch) break;
      float gradient[kN];
#pragma unroll
      for (int i = 0; i < kN; ++i) gradient[i] = fast_exp2(fmaf(packs[a].get(i), kLog2E, -exponent)) * scale;
      if (at + kN > slice.count) {
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          if (at + i >= slice.count) gradient[i] = 0.0f;
        }
      }
      store_pack<kVector, kN>(row, at, pitch, rounded<T>(gradient));
    }
  }
  // The target's, once more, by the thread that has just written it.
  if (column >= 0 && column < slice.count && column / kN % kThreads == threadIdx.x) {
    const float e = fast_exp2(fmaf(sum.at_target, kLog2E, -exponent));
    row[column] = from_float<T>(fmaf(e, inverse_sum, -1.0f) * slope);
  }
}

// A thread: the loss of a row, 0 without a target below `vocab`.
__global__ void __launch_bounds__(kThreads) row_losses_kernel(const int32_t* targets, int64_t vocab, const float* parts,
                                                              int64_t slices, int64_t rows, double* losses) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const bool valid = targets[row] >= 0 && targets[row] < vocab;
  losses[row] = valid ? combine_parts(parts, slices, rows, row).loss() : 0.0;
}

// loss += sum of losses / count. No target at all: nothing to divide, and every row is zero.
__global__ void __launch_bounds__(kSumThreads)
    sum_losses_kernel(const double* losses, int64_t rows, const float* count, float* loss) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) sum += losses[row];
  sum = team_sum<kSumThreads>(sum);
  if (threadIdx.x == 0) *loss += static_cast<float>(*count > 0.0f ? sum * (1.0 / *count) : 0.0);
}

__global__ void __launch_bounds__(kSumThreads) count_valid_kernel(const int32_t* targets, int64_t rows, float* count) {
  int valid = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) valid += targets[row] >= 0;
  valid = team_sum<kSumThreads>(valid);
  if (threadIdx.x == 0) *count += static_cast<float>(valid);
}

cudaError_t add_losses(cudaStream_t stream, const double* losses, int64_t rows, In count, InOut loss) {
  sum_losses_kernel<<<1, kSumThreads, 0, stream>>>(losses, rows, source<float>(count), target<float>(loss));
  return cudaGetLastError();
}

// How many blocks share a row, and the shared memory that each then needs for its part; 0: a row is too long for any,
// and is read twice by one. Depends on the type and `vocab` only, so that sums have one order.
struct Split {
  int cluster = 1;
  size_t cache_bytes = 0;
};
template <typename T>
Split split_of(int64_t vocab) {
  constexpr struct {
    int cluster;
    size_t most;
  } kChoices[] = {{1, kTwoBlocks}, {4, kTwoBlocks}, {8, kTwoBlocks}, {8, kOneBlock}};
  for (const auto& choice : kChoices) {
    const int64_t packs = ceil_div(ceil_div(vocab, kPackSize<T>), kThreads * choice.cluster) * kThreads;
    const size_t bytes = static_cast<size_t>(packs) * sizeof(uint4);
    if (bytes <= choice.most) return {choice.cluster, bytes};
  }
  return {};
}

template <typename Visit>
cudaError_t with_cluster(int cluster, const Visit& visit) {
  if (cluster == 8) return visit(std::integral_constant<int, 8>());
  if (cluster == 4) return visit(std::integral_constant<int, 4>());
  return visit(std::integral_constant<int, 1>());
}

template <int kCluster, typename... Params, typename... Arguments>
cudaError_t launch_rows(cudaStream_t stream, int64_t rows, size_t cache_bytes, void (*kernel)(Params...),
                        Arguments... arguments) {
  if (cache_bytes > 0) {
    // A limit, and always the same one: another thread may be launching this kernel for another vocabulary.
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kOneBlock));
    if (error == cudaSuccess) {
      error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    }
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * kCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = cache_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The arguments were checked. kGradient writes `logits`.
template <bool kGradient>
absl::Status launch(const char* op, cudaStream_t stream, Workspaces& workspaces, In targets, In count, In loss_scale,
                    int64_t vocab, const View& logits, InOut loss) {
  const int64_t rows = targets.elements(), pitch = logits.cols();
  const auto memory = workspaces.get(op, stream, static_cast<size_t>(rows) * sizeof(double));
  if (!memory.ok()) return memory.status();
  double* losses = reinterpret_cast<double*>(*memory);
  cudaError_t error = with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    using Logits = std::conditional_t<kGradient, T, const T>;
    constexpr int kN = kPackSize<T>;
    Logits* from = target<T>(logits);
    const Split split = split_of<T>(vocab);
    return with_bool(pitch % kN == 0 && fits_packs<kN>(from), [&](auto vector) {
      const auto run = [&](auto cluster, size_t bytes, auto kernel) {
        return launch_rows<cluster.value>(stream, rows, bytes, kernel, source<int32_t>(targets), source<float>(count),
                                          source<float>(loss_scale), vocab, pitch, from, losses);
      };
      if (kGradient && split.cache_bytes == 0) {
        constexpr std::integral_constant<int, 1> kOne;
        return run(kOne, 0, cross_entropy_kernel<kGradient, false, 1, vector.value, T, Logits>);
      }
      return with_cluster(split.cluster, [&](auto cluster) {
        return run(cluster, kGradient ? split.cache_bytes : 0,
                   cross_entropy_kernel<kGradient, kGradient, cluster.value, vector.value, T, Logits>);
      });
    });
  });
  if (error == cudaSuccess) error = add_losses(stream, losses, rows, count, loss);
  return to_status(error, op);
}

// Of targets below `vocab`.
absl::Status add_loss_of_parts(const char* op, cudaStream_t stream, Workspaces& workspaces, In targets, int64_t vocab,
                               In count, In parts, InOut loss) {
  const int64_t rows = targets.elements(), slices = parts.elements() / (3 * rows);
  const auto memory = workspaces.get(op, stream, static_cast<size_t>(rows) * sizeof(double));
  if (!memory.ok()) return memory.status();
  double* losses = reinterpret_cast<double*>(*memory);
  row_losses_kernel<<<static_cast<unsigned>(ceil_div(rows, kThreads)), kThreads, 0, stream>>>(
      source<int32_t>(targets), vocab, source<float>(parts), slices, rows, losses);
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) error = add_losses(stream, losses, rows, count, loss);
  return to_status(error, op);
}

}  // namespace

absl::Status CudaKernels::count_valid(Stream& stream, In targets, InOut count) {
  if (absl::Status status = check_count_valid(targets, count); !status.ok()) return status;
  count_valid_kernel<<<1, kSumThreads, 0, handle_of(stream)>>>(source<int32_t>(targets), targets.elements(),
                                                               target<float>(count));
  return to_status(cudaGetLastError(), "count_valid");
}

absl::Status CudaKernels::cross_entropy(Stream& stream, In targets, In count, In loss_scale, int64_t vocab,
                                        InOut logits, InOut loss) {
  constexpr const char* kOp = "cross_entropy";
  if (absl::Status s = check_cross_entropy(kOp, targets, count, loss_scale, vocab, logits, loss); !s.ok()) return s;
  return launch<true>(kOp, handle_of(stream), workspaces_, targets, count, loss_scale, vocab, logits, loss);
}

absl::Status CudaKernels::cross_entropy_loss(Stream& stream, In targets, In count, int64_t vocab, In logits,
                                             InOut loss) {
  constexpr const char* kOp = "cross_entropy_loss";
  if (absl::Status s = check_cross_entropy(kOp, targets, count, In(), vocab, logits, loss); !s.ok()) return s;
  return launch<false>(kOp, handle_of(stream), workspaces_, targets, count, In(), vocab, logits, loss);
}

absl::Status CudaKernels::softmax_parts(Stream& stream, In targets, const VocabSlice& slice, In logits, Out parts) {
  if (absl::Status s = check_softmax_parts(targets, slice, logits, parts); !s.ok()) return s;
  const int64_t rows = targets.elements(), pitch = logits.cols();
  with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T* from = source<T>(logits);
    with_bool(pitch % kN == 0 && fits_packs<kN>(from), [&](auto vector) {
      softmax_parts_kernel<vector.value><<<static_cast<unsigned>(rows), kThreads, 0, handle_of(stream)>>>(
          source<int32_t>(targets), slice, pitch, from, target<float>(parts));
    });
  });
  return to_status(cudaGetLastError(), "softmax_parts");
}

absl::Status CudaKernels::cross_entropy_parts(Stream& stream, In targets, In count, In loss_scale,
                                              const VocabSlice& slice, In parts, InOut logits, InOut loss) {
  constexpr const char* kOp = "cross_entropy_parts";
  if (absl::Status s = check_cross_entropy_parts(targets, count, loss_scale, slice, parts, logits, loss); !s.ok()) {
    return s;
  }
  const cudaStream_t on = handle_of(stream);
  absl::Status status = add_loss_of_parts(kOp, on, workspaces_, targets, slice.vocab, count, parts, loss);
  if (!status.ok()) return status;
  const int64_t rows = targets.elements(), pitch = logits.cols(), slices = parts.elements() / (3 * rows);
  with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    T* at = target<T>(logits);
    with_bool(pitch % kN == 0 && fits_packs<kN>(at), [&](auto vector) {
      cross_entropy_parts_kernel<vector.value><<<static_cast<unsigned>(rows), kThreads, 0, on>>>(
          source<int32_t>(targets), source<float>(count), source<float>(loss_scale), slice, source<float>(parts),
          slices, pitch, at);
    });
  });
  return to_status(cudaGetLastError(), kOp);
}

absl::Status CudaKernels::cross_entropy_loss_parts(Stream& stream, In targets, In count, In parts, InOut loss) {
  constexpr const char* kOp = "cross_entropy_loss_parts";
  if (absl::Status s = check_cross_entropy_loss_parts(targets, count, parts, loss); !s.ok()) return s;
  constexpr int64_t kAnyTarget = std::numeric_limits<int64_t>::max();
  return add_loss_of_parts(kOp, handle_of(stream), workspaces_, targets, kAnyTarget, count, parts, loss);
}

}  // namespace telar::backend::cuda
