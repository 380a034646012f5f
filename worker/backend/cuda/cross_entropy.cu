// Softmax cross entropy, rows by blocks or clusters of blocks that keep them in shared memory: the logits are read once
// and their gradient written once. There are as many blocks as the device holds; where a block has written a part of a
// row's gradient, it asks for that part of its next row, so that memory is read and written all the time.
#include <cooperative_groups.h>

#include <algorithm>
#include <cfloat>

#include "worker/backend/check.h"
#include "worker/backend/cuda/async_copy.cuh"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/fast_math.cuh"
#include "worker/backend/cuda/occupancy.h"
#include "worker/backend/cuda/pack.cuh"
#include "worker/backend/cuda/reduce.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 384;  // Of a block.
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 3;                        // A processor has registers for; as many as keep 76 KB each.
constexpr int kBatch = 4;                         // Packs that a thread looks at together.
constexpr int kParts = 4;                         // Of a thread's packs, each of which is waited for by itself.
constexpr int kSumThreads = 1024;                 // Of the one block that adds up what rows or tokens have.
constexpr size_t kTwoBlocks = size_t{112} << 10;  // Shared memory that leaves room for another block on the processor.
constexpr size_t kOneBlock = size_t{224} << 10;   // What is left of it beside the little that the kernels declare.

// The maximum of some numbers, as log2(e) times it in `exponent`, and the sum of 2^(log2(e) number - exponent). Since
// all use the exponent as it is rounded, its error does not show. It starts far below all, but finite, so that no
// difference is inf - inf; a NaN shows in the sum. No initializers: __shared__ variables have none.
struct MaxSum {
  float exponent, sum;
};
__device__ MaxSum nothing() { return {-FLT_MAX / 4, 0.0f}; }

// Of the lanes, on each.
__device__ MaxSum warp_max_sum(MaxSum value) {
  float exponent = value.exponent;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) exponent = fmaxf(exponent, shuffle_xor(exponent, mask));
  return {exponent, warp_sum(value.sum * fast_exp2(value.exponent - exponent))};
}

// The larger of each two, or the one that is a number.
template <typename T, int kN>
__device__ Pack<T, kN> larger(const Pack<T, kN>& a, const Pack<T, kN>& b) {
  Pack<T, kN> result;
  if constexpr (sizeof(T) == 2) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      Pair x, y;
      memcpy(&x, &a.values[i], sizeof(x));
      memcpy(&y, &b.values[i], sizeof(y));
      x = __hmax2(x, y);
      memcpy(&result.values[i], &x, sizeof(x));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) result.values[i] = fmaxf(a.values[i], b.values[i]);
  }
  return result;
}

// With the first `count` packs; the others are of -inf. Rounded alike in all kernels.
template <typename T, int kN>
__device__ MaxSum absorb(MaxSum all, const Pack<T, kN> (&packs)[kBatch], int count) {
  Pack<T, kN> largest = packs[0];
#pragma unroll
  for (int p = 1; p < kBatch; ++p) largest = larger(largest, packs[p]);
  float maximum = largest.get(0);
#pragma unroll
  for (int i = 1; i < kN; ++i) maximum = fmaxf(maximum, largest.get(i));
  const float exponent = fmaxf(all.exponent, maximum * kLog2E);
  float sum = __fmul_rn(all.sum, fast_exp2(all.exponent - exponent));
#pragma unroll
  for (int p = 0; p < kBatch; ++p) {
    if (p >= count) break;
    float of_pack = 0.0f;
#pragma unroll
    for (int i = 0; i < kN; ++i) of_pack += fast_exp2(fmaf(packs[p].get(i), kLog2E, -exponent));
    sum += of_pack;
  }
  return {exponent, sum};
}

// What was written to shared memory of the cluster before arrive() is seen by all of it behind wait().
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Of all blocks of the cluster, in a fixed order, on every thread. Two calls that follow each other have different
// turns, 0 and 1: who writes for the second time is then behind the barrier of the call between, which others reach
// only when they have read the first. The cluster's blocks all run before the first call.
template <int kCluster>
__device__ MaxSum cluster_max_sum(MaxSum value, int turn) {
  __shared__ MaxSum of_warps[2][kWarps], of_blocks[2][kCluster];
  value = warp_max_sum(value);
  const int lane = threadIdx.x % 32;
  if (lane == 0) of_warps[turn][threadIdx.x / 32] = value;
  __syncthreads();
  if (kCluster > 1 && threadIdx.x >= 32) {
    value = nothing();
  } else {
    value = warp_max_sum(lane < kWarps ? of_warps[turn][lane] : nothing());
  }
  if constexpr (kCluster > 1) {
    const auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x < kCluster) *cluster.map_shared_rank(&of_blocks[turn][cluster.block_rank()], threadIdx.x) = value;
    cluster_arrive();
    cluster_wait();
    auto [exponent, sum] = nothing();
#pragma unroll
    for (int block = 0; block < kCluster; ++block) exponent = fmaxf(exponent, of_blocks[turn][block].exponent);
#pragma unroll
    for (int block = 0; block < kCluster; ++block) {
      sum = fmaf(of_blocks[turn][block].sum, fast_exp2(of_blocks[turn][block].exponent - exponent), sum);
    }
    value = {exponent, sum};
  }
  return value;
}

// What a thread of cross_entropy_kernel has of a row of `vocab`: packs threadIdx.x + k kThreads of the block's, from
// `start` on.
template <int kN>
struct Share {
  int start, packs;  // The block's.
  int of_part;       // k of a part.

  __device__ Share(int rank, int cluster, int64_t vocab) {
    const int all = static_cast<int>((vocab + kN - 1) / kN), of_block = (all + cluster - 1) / cluster;
    start = rank * of_block;
    packs = max(0, min(of_block, all - start));
    of_part = (of_block + kParts * kBatch * kThreads - 1) / (kParts * kBatch * kThreads) * kBatch;
  }
  __device__ int at(int slot) const { return (start + slot) * kN; }
  // visit(slot) of the thread's packs in a part.
  template <typename Visit>
  __device__ void for_part(int part, const Visit& visit) const {
#pragma unroll 2
    for (int k = part * of_part; k < (part + 1) * of_part; ++k) {
      const int slot = static_cast<int>(threadIdx.x) + k * kThreads;
      if (slot >= packs) break;
      visit(slot);
    }
  }
};

__device__ void wait_for_part(int part) {
  static_assert(kParts == 4);
  if (part == 0) wait_for_copies<3>();
  if (part == 1) wait_for_copies<2>();
  if (part == 2) wait_for_copies<1>();
  if (part == 3) wait_for_copies<0>();
}

// Packs of the thread from slot `first` on, -inf where there is no more. Returns how many there are, at least 1.
template <typename T, int kN, typename Read>
__device__ int read_batch(const Share<kN>& share, int first, int64_t vocab, const Read& read,
                          Pack<T, kN> (&packs)[kBatch]) {
  int count = 0;
#pragma unroll
  for (int p = 0; p < kBatch; ++p) {
    const int slot = first + p * kThreads;
    if (slot < share.packs) {
      packs[p] = read(slot);
      ++count;
    } else {
#pragma unroll
      for (int i = 0; i < kN; ++i) packs[p].values[i] = T(-INFINITY);
    }
  }
  if (share.at(first + (count - 1) * kThreads) + kN > vocab) {  // The row's last pack, of which only a part counts.
#pragma unroll
    for (int p = 0; p < kBatch; ++p) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        if (share.at(first + p * kThreads) + i >= vocab) packs[p].values[i] = T(-INFINITY);
      }
    }
  }
  return count;
}

// Clusters take rows of [rows, pitch] in turn. losses[row] = -log softmax(row)[target], 0 without a target. `logits` is
// read only, unless kGradient: then it becomes *loss_scale (null: 1) times d loss / d logits. With kCached, for which
// they are aligned, a thread has its packs in shared memory, and else reads them where they are, twice.
template <bool kGradient, bool kCached, int kCluster, bool kVector, typename T, typename Logits>
__global__ void __launch_bounds__(kThreads, kBlocks)
    cross_entropy_kernel(const int32_t* targets, const float* count, const float* loss_scale, int64_t rows,
                         int64_t vocab, int64_t pitch, Logits* logits, double* losses) {
  constexpr int kN = kPackSize<T>;
  extern __shared__ uint4 cache[];
  const int rank = blockIdx.x % kCluster;
  const Share<kN> share(rank, kCluster, vocab);
  const int64_t clusters = gridDim.x / kCluster;
  int64_t row_index = blockIdx.x / kCluster;
  const auto fetch = [&](int slot, int64_t of_row) {
    if constexpr (kCached) {
      if (of_row < rows) copy_pack_async(&cache[slot], logits + of_row * pitch + share.at(slot), true);
    }
  };
  if constexpr (kCluster > 1) cluster_arrive();
  if constexpr (kCached) {
    for (int part = 0; part < kParts; ++part) {
      share.for_part(part, [&](int slot) { fetch(slot, row_index); });
      commit_copies();
    }
  }
  if constexpr (kCluster > 1) cluster_wait();
  const float slope = kGradient && *count > 0.0f ? (loss_scale == nullptr ? 1.0f : *loss_scale) / *count : 0.0f;

  for (int turn = 0; row_index < rows; row_index += clusters, turn = 1 - turn) {
    Logits* row = logits + row_index * pitch;
    const auto read = [&](int slot) {
      if constexpr (kCached) {
        Pack<T, kN> pack;
        memcpy(&pack, &cache[slot], sizeof(uint4));
        return pack;
      } else {
        return load_pack<kVector, kN, T>(row, share.at(slot), pitch);
      }
    };
    const int64_t label = targets[row_index];
    const bool has_target = label >= 0 && label < vocab, writes_loss = rank == 0 && threadIdx.x == 0;
    float at_target = 0.0f;  // Read before the barriers that come before anyone overwrites it.
    if (has_target && writes_loss) at_target = to_float(row[label]);

    MaxSum all = nothing();
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kCached) wait_for_part(part);
#pragma unroll 1
      for (int k = part * share.of_part; k < (part + 1) * share.of_part; k += kBatch) {
        const int first = static_cast<int>(threadIdx.x) + k * kThreads;
        if (first >= share.packs) break;
        Pack<T, kN> packs[kBatch];
        const int inside = read_batch(share, first, vocab, read, packs);
        all = absorb(all, packs, inside);
      }
    }
    all = cluster_max_sum<kCluster>(all, turn);
    if (writes_loss) {
      constexpr double kLn2 = 0.69314718055994530942;
      const double log_sum = (log2(static_cast<double>(all.sum)) + all.exponent) * kLn2;
      losses[row_index] = has_target ? log_sum - at_target : 0.0;
    }

    if constexpr (kGradient) {
      const float inverse_sum = 1.0f / all.sum;
      const float scale = inverse_sum * slope;
      const auto write_gradient = [&](int slot) {
        const Pack<T, kN> pack = read(slot);
        const int at = share.at(slot);
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
        if (!has_target || at + kN > vocab) {
#pragma unroll
          for (int i = 0; i < kN; ++i) {
            if (!has_target || at + i >= vocab) gradient[i] = 0.0f;
          }
        }
        store_pack<kVector, kN>(row, at, pitch, rounded<T>(gradient));
        fetch(slot, row_index + clusters);  // Into the place that was read.
      };
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        share.for_part(part, write_gradient);
        if constexpr (kCached) commit_copies();
      }
      const Pack<T, kN> zeros{};
      const int64_t end = (vocab + kN - 1) / kN * kN;  // The packs behind the vocabulary's.
      for (int64_t at = end + (rank * kThreads + static_cast<int>(threadIdx.x)) * kN; at < pitch;
           at += kThreads * kCluster * kN) {
        store_pack<kVector, kN>(row, at, pitch, zeros);
      }
    }
  }
}

// loss += sum of losses / count. No target at all: nothing to divide, and every row is zero.
__global__ void __launch_bounds__(kSumThreads)
    sum_losses_kernel(const double* losses, int64_t rows, const float* count, float* loss) {
  double sum = 0;
#pragma unroll 4
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
  } kChoices[] = {{1, kTwoBlocks}, {2, kTwoBlocks}, {4, kTwoBlocks}, {8, kTwoBlocks}, {8, kOneBlock}};
  for (const auto& choice : kChoices) {
    const int64_t packs = ceil_div(ceil_div(vocab, kPackSize<T>), choice.cluster);
    const size_t bytes = static_cast<size_t>(packs) * sizeof(uint4);
    if (bytes <= choice.most) return {choice.cluster, bytes};
  }
  return {};
}

template <typename Visit>
cudaError_t with_cluster(int cluster, const Visit& visit) {
  if (cluster == 8) return visit(std::integral_constant<int, 8>());
  if (cluster == 4) return visit(std::integral_constant<int, 4>());
  if (cluster == 2) return visit(std::integral_constant<int, 2>());
  return visit(std::integral_constant<int, 1>());
}

template <int kCluster, typename... Params, typename... Arguments>
cudaError_t launch_rows(cudaStream_t stream, int64_t rows, size_t cache_bytes, void (*kernel)(Params...),
                        Arguments... arguments) {
  const auto address = reinterpret_cast<const void*>(kernel);
  // A limit, and always the same one: another thread may be launching this kernel for another vocabulary.
  cudaError_t error = cache_bytes > 0 ? allow_shared(address, kOneBlock) : cudaSuccess;
  int blocks = 0;
  if (error == cudaSuccess) error = resident_blocks(address, kThreads, cache_bytes, kCluster, &blocks);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min<int64_t>(rows * kCluster, blocks)));
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
      return with_cluster(split.cluster, [&](auto cluster) {
        const auto run = [&](size_t bytes, auto kernel) {
          return launch_rows<cluster.value>(stream, rows, bytes, kernel, source<int32_t>(targets), source<float>(count),
                                            source<float>(loss_scale), rows, vocab, pitch, from, losses);
        };
        if constexpr (kGradient && vector.value) {
          if (split.cache_bytes > 0) {
            return run(split.cache_bytes, cross_entropy_kernel<true, true, cluster.value, true, T, T>);
          }
        }
        return run(0, cross_entropy_kernel<kGradient, false, cluster.value, vector.value, T, Logits>);
      });
    });
  });
  if (error == cudaSuccess) {
    sum_losses_kernel<<<1, kSumThreads, 0, stream>>>(losses, rows, source<float>(count), target<float>(loss));
    error = cudaGetLastError();
  }
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

}  // namespace telar::backend::cuda
