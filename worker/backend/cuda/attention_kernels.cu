// Attention by blocks with a running softmax (Milakov & Gimelshein 2018; Dao et al. 2022). A warp owns one row (a
// query, or a key in the backward's second half) and meets the rows of the other side 32 at a time, which the block
// brings to shared memory: a lane computes the scores of one of the 32, then the warp turns, and a lane gathers
// elements of the head dimension.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "worker/backend/cuda/attention_kernels.h"

namespace telar::backend::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kRows = 16;  // Warps, and so rows, a block.
constexpr int kThreads = kRows * kLanes;
constexpr unsigned kAll = 0xffffffffu;

__device__ float warp_max(float x) {
  for (int lane = kLanes / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, lane));
  return x;
}
__device__ float warp_sum(float x) {
  for (int lane = kLanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAll, x, lane);
  return x;
}

// The rows of one head of one batch element in global memory.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  __device__ T* row(int64_t t) const { return data + t * stride; }
};

struct Shape {
  int64_t sequence, heads, kv_heads;
  int head_dim;
  float scale;
  const int32_t* starts;  // Of documents; may be null.
  // The first key that a query sees; never falls along the sequence.
  __device__ int64_t first_key(int64_t batch, int64_t query) const {
    return starts != nullptr && query < sequence ? starts[batch * sequence + query] : 0;
  }
  __host__ __device__ int64_t group() const { return heads / kv_heads; }
  __host__ __device__ int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  // Odd, so that 32 lanes reading 32 rows meet 32 banks.
  __host__ __device__ int pitch() const { return head_dim | 1; }
  // head: 0 .. heads - 1 are queries, then come keys, then values.
  template <typename T>
  __device__ Rows<T> packed(T* qkv, int64_t batch, int64_t head) const {
    return {qkv + batch * sequence * width() + head * head_dim, width()};
  }
  template <typename T>
  __device__ Rows<T> output(T* o, int64_t batch, int64_t head) const {
    return {o + batch * sequence * heads * head_dim + head * head_dim, heads * head_dim};
  }
  __device__ int64_t key(int64_t head) const { return heads + head / group(); }
  __device__ int64_t value(int64_t head) const { return key(head) + kv_heads; }
  // Of one head in a [batch, heads, sequence] tensor.
  __device__ int64_t statistics(int64_t batch, int64_t head) const { return (batch * heads + head) * sequence; }
};

// Two tiles of kLanes rows, then two rows a warp.
struct Shared {
  float *first, *second, *own_first, *own_second;
  __device__ Shared(float* memory, int pitch, int warp)
      : first(memory),
        second(first + kLanes * pitch),
        own_first(second + kLanes * pitch + 2 * warp * pitch),
        own_second(own_first + pitch) {}
  static size_t bytes(int pitch) { return (2 * kLanes + 2 * kRows) * pitch * sizeof(float); }
};

// By the whole block; rows past the end are zeros.
template <typename T>
__device__ void load_tile(float* tile, const Shape& shape, Rows<T> rows, int64_t first) {
  for (int at = threadIdx.x; at < kLanes * shape.head_dim; at += kThreads) {
    const int row = at / shape.head_dim, d = at % shape.head_dim;
    const bool inside = first + row < shape.sequence;
    tile[row * shape.pitch() + d] = inside ? static_cast<float>(rows.row(first + row)[d]) : 0.0f;
  }
}

// By one warp.
template <typename T>
__device__ void load_row(float* to, const Shape& shape, Rows<T> rows, int64_t row, int lane) {
  for (int d = lane; d < shape.head_dim; d += kLanes) {
    to[d] = row < shape.sequence ? static_cast<float>(rows.row(row)[d]) : 0.0f;
  }
  __syncwarp();
}

// This lane's row of the tile times the warp's own row.
__device__ float dot(const float* own, const float* tile, const Shape& shape, int lane) {
  float sum = 0;
  for (int d = 0; d < shape.head_dim; ++d) sum += own[d] * tile[lane * shape.pitch() + d];
  return sum;
}

// sums += sum over the tile's rows r of (lane r's weight) * row r; element d = lane + 32 i is in sums[i].
template <int kSums>
__device__ void gather(float (&sums)[kSums], float weight, const float* tile, const Shape& shape, int lane) {
  for (int row = 0; row < kLanes; ++row) {
    const float w = __shfl_sync(kAll, weight, row);
    for (int i = 0; i < kSums; ++i) {
      const int d = lane + i * kLanes;
      if (d < shape.head_dim) sums[i] += w * tile[row * shape.pitch() + d];
    }
  }
}

template <typename T, int kSums>
__device__ void store_row(const float (&sums)[kSums], float factor, const Shape& shape, Rows<T> rows, int64_t row,
                          int lane) {
  if (row >= shape.sequence) return;
  for (int i = 0; i < kSums; ++i) {
    const int d = lane + i * kLanes;
    if (d < shape.head_dim) rows.row(row)[d] = T(sums[i] * factor);
  }
}

// Grid: blocks of queries x heads x batch, as in the next two.
template <typename T, int kSums>
__global__ void __launch_bounds__(kThreads) forward(Shape shape, const T* qkv, T* o, float* lse) {
  extern __shared__ float memory[];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t first_query = static_cast<int64_t>(blockIdx.x) * kRows, query = first_query + warp;
  const Shared shared(memory, shape.pitch(), warp);
  load_row(shared.own_first, shape, shape.packed(qkv, batch, head), query, lane);
  const int64_t start = shape.first_key(batch, query);
  float sums[kSums] = {}, maximum = -INFINITY, total = 0;
  for (int64_t first = shape.first_key(batch, first_query) / kLanes * kLanes;
       first < first_query + kRows && first < shape.sequence; first += kLanes) {
    __syncthreads();
    load_tile(shared.first, shape, shape.packed(qkv, batch, shape.key(head)), first);
    load_tile(shared.second, shape, shape.packed(qkv, batch, shape.value(head)), first);
    __syncthreads();
    if (first > query || first + kLanes <= start) continue;  // The same for the whole warp.
    const bool is_seen = first + lane <= query && first + lane >= start;
    const float score = is_seen ? dot(shared.own_first, shared.first, shape, lane) * shape.scale : -INFINITY;
    const float before = maximum;
    maximum = fmaxf(maximum, warp_max(score));
    const float correction = expf(before - maximum), p = expf(score - maximum);
    total = total * correction + warp_sum(p);
    for (int i = 0; i < kSums; ++i) sums[i] *= correction;
    gather(sums, p, shared.second, shape, lane);
  }
  store_row(sums, 1.0f / total, shape, shape.output(o, batch, head), query, lane);
  if (lane == 0 && query < shape.sequence) lse[shape.statistics(batch, head) + query] = maximum + logf(total);
}

// dsum[query] = d_o . o, a warp a query.
template <typename T>
__global__ void __launch_bounds__(kThreads) output_dots(Shape shape, const T* o, const T* d_o, float* dsum) {
  const int lane = threadIdx.x % kLanes;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t query = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kLanes;
  if (query >= shape.sequence) return;
  const T *a = shape.output(o, batch, head).row(query), *b = shape.output(d_o, batch, head).row(query);
  float sum = 0;
  for (int d = lane; d < shape.head_dim; d += kLanes) sum += static_cast<float>(a[d]) * static_cast<float>(b[d]);
  sum = warp_sum(sum);
  if (lane == 0) dsum[shape.statistics(batch, head) + query] = sum;
}

template <typename T, int kSums>
__global__ void __launch_bounds__(kThreads)
    backward_queries(Shape shape, const T* qkv, const float* lse, const T* d_o, const float* dsum, T* dqkv) {
  extern __shared__ float memory[];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t first_query = static_cast<int64_t>(blockIdx.x) * kRows, query = first_query + warp;
  const Shared shared(memory, shape.pitch(), warp);
  load_row(shared.own_first, shape, shape.packed(qkv, batch, head), query, lane);
  load_row(shared.own_second, shape, shape.output(d_o, batch, head), query, lane);
  const bool is_row = query < shape.sequence;
  const int64_t at = shape.statistics(batch, head) + query;
  const float row_lse = is_row ? lse[at] : 0.0f, row_dsum = is_row ? dsum[at] : 0.0f;
  const int64_t start = shape.first_key(batch, query);
  float dq[kSums] = {};
  for (int64_t first = shape.first_key(batch, first_query) / kLanes * kLanes;
       first < first_query + kRows && first < shape.sequence; first += kLanes) {
    __syncthreads();
    load_tile(shared.first, shape, shape.packed(qkv, batch, shape.key(head)), first);
    load_tile(shared.second, shape, shape.packed(qkv, batch, shape.value(head)), first);
    __syncthreads();
    if (first > query || first + kLanes <= start || !is_row) continue;
    float ds = 0;
    if (first + lane <= query && first + lane >= start) {
      const float p = expf(dot(shared.own_first, shared.first, shape, lane) * shape.scale - row_lse);
      ds = p * (dot(shared.own_second, shared.second, shape, lane) - row_dsum);
    }
    gather(dq, ds, shared.first, shape, lane);
  }
  store_row(dq, shape.scale, shape, shape.packed(dqkv, batch, head), query, lane);
}

// Grid: blocks of keys x key-value heads x batch.
template <typename T, int kSums>
__global__ void __launch_bounds__(kThreads)
    backward_keys(Shape shape, const T* qkv, const float* lse, const T* d_o, const float* dsum, T* dqkv) {
  extern __shared__ float memory[];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t kv_head = blockIdx.y, batch = blockIdx.z, first_head = kv_head * shape.group();
  const int64_t first_key = static_cast<int64_t>(blockIdx.x) * kRows, key = first_key + warp;
  const int64_t k_head = shape.key(first_head), v_head = shape.value(first_head);
  const Shared shared(memory, shape.pitch(), warp);
  load_row(shared.own_first, shape, shape.packed(qkv, batch, k_head), key, lane);
  load_row(shared.own_second, shape, shape.packed(qkv, batch, v_head), key, lane);
  float dk[kSums] = {}, dv[kSums] = {};
  for (int64_t head = first_head; head < first_head + shape.group(); ++head) {
    for (int64_t first = first_key / kLanes * kLanes; first < shape.sequence; first += kLanes) {
      if (shape.first_key(batch, first) >= first_key + kRows) break;  // The whole block, as for all that follow.
      __syncthreads();
      load_tile(shared.first, shape, shape.packed(qkv, batch, head), first);
      load_tile(shared.second, shape, shape.output(d_o, batch, head), first);
      __syncthreads();
      const int64_t query = first + lane, at = shape.statistics(batch, head) + query;
      float p = 0, ds = 0;
      if (query >= key && query < shape.sequence && shape.first_key(batch, query) <= key) {
        p = expf(dot(shared.own_first, shared.first, shape, lane) * shape.scale - lse[at]);
        ds = p * (dot(shared.own_second, shared.second, shape, lane) - dsum[at]);
      }
      gather(dk, ds, shared.first, shape, lane);
      gather(dv, p, shared.second, shape, lane);
    }
  }
  store_row(dk, shape.scale, shape, shape.packed(dqkv, batch, k_head), key, lane);
  store_row(dv, 1.0f, shape, shape.packed(dqkv, batch, v_head), key, lane);
}

// Block x: row x of all sequences.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    document_bias(const int32_t* starts, int64_t pitch, float foreign, T* bias) {
  const int64_t start = starts[blockIdx.x];
  T* row = bias + blockIdx.x * pitch;
  for (int64_t key = threadIdx.x; key < pitch; key += kThreads) row[key] = T(key >= start ? 0.0f : foreign);
}

struct Launch {
  cudaStream_t stream;
  Shape shape;
  int64_t batch;
  dim3 blocks(int64_t heads) const {
    return {static_cast<unsigned>((shape.sequence + kRows - 1) / kRows), static_cast<unsigned>(heads),
            static_cast<unsigned>(batch)};
  }
  size_t shared_bytes() const { return Shared::bytes(shape.pitch()); }
};

// Large heads need more shared memory than a kernel gets unasked.
template <typename Kernel>
cudaError_t allow(const Launch& launch, Kernel* kernel) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(launch.shared_bytes()));
}

template <typename T, int kSums>
struct Forward {
  static cudaError_t run(const Launch& launch, const T* qkv, T* o, float* lse) {
    if (cudaError_t error = allow(launch, forward<T, kSums>); error != cudaSuccess) return error;
    forward<T, kSums><<<launch.blocks(launch.shape.heads), kThreads, launch.shared_bytes(), launch.stream>>>(
        launch.shape, qkv, o, lse);
    return cudaGetLastError();
  }
};

template <typename T, int kSums>
struct Backward {
  static cudaError_t run(const Launch& launch, const T* qkv, const T* o, const float* lse, const T* d_o, float* dsum,
                         T* dqkv) {
    const dim3 query_blocks = launch.blocks(launch.shape.heads), key_blocks = launch.blocks(launch.shape.kv_heads);
    if (cudaError_t error = allow(launch, backward_queries<T, kSums>); error != cudaSuccess) return error;
    if (cudaError_t error = allow(launch, backward_keys<T, kSums>); error != cudaSuccess) return error;
    output_dots<T><<<query_blocks, kThreads, 0, launch.stream>>>(launch.shape, o, d_o, dsum);
    backward_queries<T, kSums>
        <<<query_blocks, kThreads, launch.shared_bytes(), launch.stream>>>(launch.shape, qkv, lse, d_o, dsum, dqkv);
    backward_keys<T, kSums>
        <<<key_blocks, kThreads, launch.shared_bytes(), launch.stream>>>(launch.shape, qkv, lse, d_o, dsum, dqkv);
    return cudaGetLastError();
  }
};

// Runs Op for the least number of elements a lane that covers the head.
template <template <typename, int> typename Op, typename T, typename... Arguments>
cudaError_t run(cudaStream_t stream, const AttentionDims& dims, const int32_t* starts, Arguments... arguments) {
  if (dims.head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  const Shape shape{dims.sequence,
                    dims.heads,
                    dims.kv_heads,
                    static_cast<int>(dims.head_dim),
                    1.0f / std::sqrt(static_cast<float>(dims.head_dim)),
                    starts};
  const Launch launch{stream, shape, dims.batch};
  if (dims.head_dim <= 64) return Op<T, 2>::run(launch, arguments...);
  if (dims.head_dim <= 128) return Op<T, 4>::run(launch, arguments...);
  if (dims.head_dim <= 256) return Op<T, 8>::run(launch, arguments...);
  return Op<T, 16>::run(launch, arguments...);
}

template <typename T>
cudaError_t attention(cudaStream_t stream, const AttentionDims& dims, const void* qkv, const int32_t* starts, void* o,
                      float* lse) {
  return run<Forward, T>(stream, dims, starts, static_cast<const T*>(qkv), static_cast<T*>(o), lse);
}

template <typename T>
cudaError_t attention_backward(cudaStream_t stream, const AttentionDims& dims, const void* qkv, const int32_t* starts,
                               const void* o, const float* lse, const void* d_o, float* dsum, void* dqkv) {
  return run<Backward, T>(stream, dims, starts, static_cast<const T*>(qkv), static_cast<const T*>(o), lse,
                          static_cast<const T*>(d_o), dsum, static_cast<T*>(dqkv));
}

}  // namespace

cudaError_t launch_attention(cudaStream_t stream, const AttentionDims& dims, DType dtype, const void* qkv,
                             const int32_t* starts, void* o, float* lse) {
  if (dtype == DType::kBF16) return attention<__nv_bfloat16>(stream, dims, qkv, starts, o, lse);
  if (dtype == DType::kF16) return attention<__half>(stream, dims, qkv, starts, o, lse);
  return attention<float>(stream, dims, qkv, starts, o, lse);
}

cudaError_t launch_document_bias(cudaStream_t stream, const AttentionDims& dims, int64_t pitch, DType dtype,
                                 const int32_t* starts, float foreign, void* bias) {
  const auto rows = static_cast<unsigned>(dims.batch * dims.sequence);
  if (dtype == DType::kBF16) {
    document_bias<<<rows, kThreads, 0, stream>>>(starts, pitch, foreign, static_cast<__nv_bfloat16*>(bias));
  } else {
    document_bias<<<rows, kThreads, 0, stream>>>(starts, pitch, foreign, static_cast<__half*>(bias));
  }
  return cudaGetLastError();
}

cudaError_t launch_attention_backward(cudaStream_t stream, const AttentionDims& dims, DType dtype, const void* qkv,
                                      const int32_t* starts, const void* o, const float* lse, const void* d_o,
                                      float* dsum, void* dqkv) {
  if (dtype == DType::kBF16)
    return attention_backward<__nv_bfloat16>(stream, dims, qkv, starts, o, lse, d_o, dsum, dqkv);
  if (dtype == DType::kF16) return attention_backward<__half>(stream, dims, qkv, starts, o, lse, d_o, dsum, dqkv);
  return attention_backward<float>(stream, dims, qkv, starts, o, lse, d_o, dsum, dqkv);
}

}  // namespace telar::backend::cuda
