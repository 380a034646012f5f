#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "absl/strings/str_cat.h"
#include "worker/backend/check.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/pack.cuh"

namespace telar::backend::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// In its document.
__device__ int64_t position_of(int64_t token, const int32_t* starts, int64_t sequence) {
  return token % sequence - (starts != nullptr ? starts[token] : 0);
}

// Block x: token x. `table` holds the ids of `slice`; `positions` and `starts` may be null.
template <bool kVector, typename T, typename W>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const int32_t* ids, VocabSlice slice, const W* __restrict__ table, const W* __restrict__ positions,
                     const int32_t* starts, int64_t sequence, int64_t width, T* y) {
  constexpr int kN = kPackSize<T>;
  const int64_t token = blockIdx.x;
  const int64_t row = ids[token] - slice.first;
  const bool known = row >= 0 && row < slice.count;
  for (int64_t at = threadIdx.x * kN; at < width; at += kThreads * kN) {
    Pack<W, kN> word{}, position{};
    if (known) word = load_pack<kVector, kN>(table + row * width, at, width);
    if (positions != nullptr) {
      position = load_pack<kVector, kN>(positions + position_of(token, starts, sequence) * width, at, width);
    }
    Pack<T, kN> sum;
#pragma unroll
    for (int i = 0; i < kN; ++i) sum.set(i, word.get(i) + position.get(i));
    store_pack<kVector, kN>(y + token * width, at, width, sum);
  }
}

// What is sorted: rows of the table that ids [first, first + vocab) have, and the tokens with these ids. Any other id
// becomes `vocab`, the last of all. In what follows, `vocab` is the slice's and an id its row.
__global__ void __launch_bounds__(kThreads) sort_keys_kernel(const int32_t* ids, int64_t tokens, int64_t first,
                                                             uint32_t vocab, uint32_t* keys, uint32_t* order) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= tokens) return;
  const int64_t row = ids[token] - first;
  keys[token] = row >= 0 && row < vocab ? static_cast<uint32_t>(row) : vocab;
  order[token] = static_cast<uint32_t>(token);
}

// The same for rows of a table of positions: every token has one.
__global__ void __launch_bounds__(kThreads)
    position_keys_kernel(const int32_t* starts, int64_t tokens, int64_t sequence, uint32_t* keys, uint32_t* order) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= tokens) return;
  keys[token] = static_cast<uint32_t>(position_of(token, starts, sequence));
  order[token] = static_cast<uint32_t>(token);
}

// A warp sums the gradients of kSegment sorted tokens, run by run of the same id; `heads` has a row for each segment
// whose first run began in one before.
constexpr int kSegment = 32;
constexpr int kAhead = 8;  // Gradients that a warp asks for before it adds the first.

// Warp w of block (x, y): segment x kWarps + w, 32 packs of columns. Adds a run's sum to dtable, or to the part of it
// that began here; what goes on from the segment before goes to heads.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    add_runs_kernel(const uint32_t* keys, const uint32_t* order, int64_t tokens, uint32_t vocab, const T* dy,
                    int64_t width, float* dtable, float* heads) {
  constexpr int kN = kPackSize<T>;
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  const int64_t segment = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32, begin = segment * kSegment;
  if (begin >= tokens) return;  // The whole warp.
  const int64_t at = static_cast<int64_t>(blockIdx.y) * 32 * kN + lane * kN;
  const bool is_token = begin + lane < tokens;
  const uint32_t key = is_token ? keys[begin + lane] : vocab;
  const uint32_t my_token = is_token ? order[begin + lane] : 0;
  const int count = __popc(__ballot_sync(kAll, key < vocab));  // The others are behind them.
  const uint32_t next_key = __shfl_down_sync(kAll, key, 1);
  const unsigned ends = __ballot_sync(kAll, lane == 31 || next_key != key);
  bool in_head = begin > 0 && keys[begin - 1] == __shfl_sync(kAll, key, 0);
  float sum[kN] = {};
  for (int first = 0; first < count; first += kAhead) {
    Pack<T, kN> packs[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t token = __shfl_sync(kAll, my_token, first + a);
      packs[a] = load_pack<kVector, kN>(dy + token * width, at, first + a < count ? width : 0);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a >= count) break;
#pragma unroll
      for (int i = 0; i < kN; ++i) sum[i] += packs[a].get(i);
      if ((ends >> (first + a) & 1) == 0) continue;
      const int64_t id = __shfl_sync(kAll, key, first + a);
      float* to = in_head ? heads + segment * width : dtable + id * width;
      Pack<float, kN> result{};
      if (!in_head) result = load_pack<kVector, kN>(to, at, width);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        result.values[i] += sum[i];
        sum[i] = 0.0f;
      }
      store_pack<kVector, kN>(to, at, width, result);
      in_head = false;
    }
  }
}

// Block (x, y): if x is the first segment that a run goes on to, adds the run's heads, in order, to columns
// [y kThreads, (y + 1) kThreads) of dtable.
__global__ void __launch_bounds__(kThreads) add_heads_kernel(const uint32_t* keys, int64_t segments, uint32_t vocab,
                                                             const float* heads, int64_t width, float* dtable) {
  const int64_t segment = blockIdx.x, begin = segment * kSegment;
  const uint32_t id = keys[begin];
  if (segment == 0 || id >= vocab || keys[begin - 1] != id) return;  // The whole block, as below.
  if (segment > 1 && keys[begin - kSegment - 1] == id) return;
  int64_t end = segment;
  for (int more = kThreads; more == kThreads; end += more) {
    const int64_t mine = end + threadIdx.x;
    more = __syncthreads_count(mine < segments && keys[mine * kSegment] == id);
  }
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= width) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t s = segment; s < end; ++s) sum += heads[s * width + column];
  dtable[id * width + column] += sum;
}

// Thread: one pack of one position, over the sequences in order. Block (x, y): position x, packs y kThreads + thread.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kThreads)
    add_positions_kernel(const T* dy, int64_t tokens, int64_t sequence, int64_t width, float* dpositions) {
  constexpr int kN = kPackSize<T>;
  const int64_t position = blockIdx.x;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kN;
  if (at >= width) return;
  float sum[kN] = {};
#pragma unroll 4
  for (int64_t token = position; token < tokens; token += sequence) {
    const auto pack = load_pack<kVector, kN>(dy + token * width, at, width);
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[i] += pack.get(i);
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    if (at + i < width) dpositions[position * width + at + i] += sum[i];
  }
}

struct SortedTokens {
  const uint32_t* keys;   // Ids in rising order.
  const uint32_t* order;  // Their tokens, rising where ids are equal: the sort is stable.
  int64_t segments;
  float* heads;  // Of `segments` rows of `width`.
};

// By the row of a table of `vocab` rows that each of `tokens` tokens has; `make_keys(keys, order)` enqueues what is
// sorted.
template <typename MakeKeys>
absl::StatusOr<SortedTokens> sort_tokens(cudaStream_t stream, Workspaces& workspaces, int64_t tokens, int64_t vocab,
                                         int64_t width, MakeKeys make_keys) {
  constexpr const char* kOp = "embedding_backward";
  if (tokens > std::numeric_limits<int32_t>::max() || vocab >= std::numeric_limits<int32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat(kOp, ": got ", tokens, " tokens, a vocabulary of ", vocab,
                                                 ", the CUDA kernel takes less than 2^31 of each"));
  }
  const size_t list = static_cast<size_t>(ceil_div(tokens, 64) * 64);  // Keeps the parts aligned to 256 bytes.
  const int bits = std::bit_width(static_cast<uint32_t>(vocab));
  cub::DoubleBuffer<uint32_t> keys(nullptr, nullptr), order(nullptr, nullptr);
  size_t sort_bytes = 0;
  cudaError_t error =
      cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, order, static_cast<int>(tokens), 0, bits, stream);
  if (absl::Status status = to_status(error, "embedding_backward: sorting"); !status.ok()) return status;
  const int64_t segments = ceil_div(tokens, kSegment);
  const size_t lists_bytes = 4 * list * sizeof(uint32_t);
  const size_t heads_bytes = static_cast<size_t>(ceil_div(segments * width, 64) * 64) * sizeof(float);
  const auto memory = workspaces.get(kOp, stream, lists_bytes + heads_bytes + sort_bytes);
  if (!memory.ok()) return memory.status();
  uint32_t* lists = reinterpret_cast<uint32_t*>(*memory);
  std::byte* const heads = *memory + lists_bytes;
  keys = cub::DoubleBuffer<uint32_t>(lists, lists + list);
  order = cub::DoubleBuffer<uint32_t>(lists + 2 * list, lists + 3 * list);
  make_keys(keys.Current(), order.Current());
  error = cudaGetLastError();
  if (error == cudaSuccess) {
    error = cub::DeviceRadixSort::SortPairs(heads + heads_bytes, sort_bytes, keys, order, static_cast<int>(tokens), 0,
                                            bits, stream);
  }
  if (absl::Status status = to_status(error, "embedding_backward: sorting"); !status.ok()) return status;
  return SortedTokens{keys.Current(), order.Current(), segments, reinterpret_cast<float*>(heads)};
}

cudaError_t add_rows(cudaStream_t stream, const SortedTokens& sorted, uint32_t vocab, In dy, InOut dtable) {
  const int64_t tokens = dy.rows(), width = dy.cols();
  float* to = target<float>(dtable);
  cudaError_t error = with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T* from = source<T>(dy);
    const dim3 runs(static_cast<unsigned>(ceil_div(sorted.segments, kWarps)),
                    static_cast<unsigned>(ceil_div(width, 32 * kN)));
    with_bool(width % kN == 0 && fits_packs<kN>(from) && fits_packs<kN>(to), [&](auto vector) {
      add_runs_kernel<vector.value>
          <<<runs, kThreads, 0, stream>>>(sorted.keys, sorted.order, tokens, vocab, from, width, to, sorted.heads);
    });
    return cudaGetLastError();
  });
  if (error != cudaSuccess) return error;
  const dim3 parts(static_cast<unsigned>(sorted.segments), static_cast<unsigned>(ceil_div(width, kThreads)));
  add_heads_kernel<<<parts, kThreads, 0, stream>>>(sorted.keys, sorted.segments, vocab, sorted.heads, width, to);
  return cudaGetLastError();
}

cudaError_t add_positions(cudaStream_t stream, In dy, int64_t sequence, InOut dpositions) {
  const int64_t tokens = dy.rows(), width = dy.cols();
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const T* from = source<T>(dy);
    const dim3 places(static_cast<unsigned>(sequence), static_cast<unsigned>(ceil_div(width, kThreads * kN)));
    with_bool(width % kN == 0 && fits_packs<kN>(from), [&](auto vector) {
      add_positions_kernel<vector.value>
          <<<places, kThreads, 0, stream>>>(from, tokens, sequence, width, target<float>(dpositions));
    });
  });
  return cudaGetLastError();
}

}  // namespace

absl::Status CudaKernels::embedding(Stream& stream, In ids, const VocabSlice& slice, In table, In positions, In starts,
                                    int64_t sequence, Out y) {
  if (absl::Status status = check_embedding(ids, slice, table, positions, starts, sequence, y); !status.ok())
    return status;
  const int64_t width = table.cols();
  with_types(table.dtype, y.dtype, [&](auto weight, auto type) {
    using W = decltype(weight);
    using T = decltype(type);
    constexpr int kN = kPackSize<T>;
    const W *words = source<W>(table), *places = source<W>(positions);
    T* to = target<T>(y);
    const bool fits = width % kN == 0 && fits_packs<kN>(words) && fits_packs<kN>(places) && fits_packs<kN>(to);
    with_bool(fits, [&](auto vector) {
      embedding_kernel<vector.value><<<static_cast<unsigned>(ids.elements()), kThreads, 0, handle_of(stream)>>>(
          source<int32_t>(ids), slice, words, places, source<int32_t>(starts), sequence, width, to);
    });
  });
  return to_status(cudaGetLastError(), "embedding");
}

absl::Status CudaKernels::embedding_backward(Stream& stream, In ids, const VocabSlice& slice, In dy, In starts,
                                             int64_t sequence, InOut dtable, InOut dpositions) {
  constexpr const char* kOp = "embedding_backward";
  if (absl::Status status = check_embedding_backward(ids, slice, dy, starts, sequence, dtable, dpositions);
      !status.ok()) {
    return status;
  }
  const cudaStream_t on = handle_of(stream);
  const int64_t tokens = ids.elements();
  const auto blocks = static_cast<unsigned>(ceil_div(tokens, kThreads));
  // Both tables need the same memory, one after the other.
  const auto add_sorted = [&](int64_t rows, InOut table, auto make_keys) {
    const auto sorted = sort_tokens(on, workspaces_, tokens, rows, dy.cols(), make_keys);
    if (!sorted.ok()) return sorted.status();
    return to_status(add_rows(on, *sorted, static_cast<uint32_t>(rows), dy, table), kOp);
  };
  if (slice.count > 0) {
    const absl::Status status = add_sorted(slice.count, dtable, [&](uint32_t* keys, uint32_t* order) {
      sort_keys_kernel<<<blocks, kThreads, 0, on>>>(source<int32_t>(ids), tokens, slice.first,
                                                    static_cast<uint32_t>(slice.count), keys, order);
    });
    if (!status.ok()) return status;
  }
  if (dpositions.absent()) return absl::OkStatus();
  if (starts.absent()) return to_status(add_positions(on, dy, sequence, dpositions), kOp);
  return add_sorted(sequence, dpositions, [&](uint32_t* keys, uint32_t* order) {
    position_keys_kernel<<<blocks, kThreads, 0, on>>>(source<int32_t>(starts), tokens, sequence, keys, order);
  });
}

}  // namespace telar::backend::cuda
