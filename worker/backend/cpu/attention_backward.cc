// Backward of causal attention: scores are made again block by block from the saved log-sum-exp (Dao et al. 2022).
//   P = e^(S - lse), dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(dO O)), dQ = dS K / sqrt(D), dK = dS^T Q / sqrt(D)
#include <cmath>
#include <limits>
#include <utility>

#include "worker/backend/check.h"
#include "worker/backend/cpu/attention_blocks.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/starts.h"

namespace telar::backend::cpu {

namespace {

// One thread's memory, all f32: the keys and values of one kv head with their gradients, and one block of queries.
struct BackwardWorkspace {
  BackwardWorkspace(int64_t sequence, int64_t head_dim) {
    const int64_t block = kTokens * pitch_of(head_dim), all = blocks_of(sequence) * block;
    float* next = scratch(Scratch::kAttention, 5 * all + 5 * block + 2 * kTokens * kTokens + 2 * kTokens);
    const auto take = [&](int64_t n) { return std::exchange(next, next + n); };
    keys = take(all);
    keys_transposed = take(all);
    values_transposed = take(all);
    dkeys = take(all);
    dvalues = take(all);
    spare = take(block);
    queries = take(block);
    dqueries = take(block);
    outputs = take(block);
    doutputs = take(block);
    scores = take(kTokens * kTokens);
    dscores = take(kTokens * kTokens);
    lse = take(kTokens);
    inner = take(kTokens);
  }
  float *keys, *keys_transposed, *values_transposed, *dkeys, *dvalues;  // [blocks][kTokens][pitch] or its transposes
  float *spare, *queries, *dqueries, *outputs, *doutputs, *scores, *dscores;
  float *lse, *inner;  // inner = rowsum(dO O)
};

// scores -> P and dscores (dP) -> dS, in place. Padding rows have lse = infinity, so P = 0 there. Row r sees keys from
// hidden[r] on.
TELAR_SIMD void softmax_backward(const Extent& extent, float* __restrict scores, float* __restrict dscores,
                                 const float* __restrict lse, const float* __restrict inner,
                                 const int64_t* __restrict hidden, bool diagonal) {
  for (int64_t r = 0; r < extent.queries; ++r) {
    float* p = scores + r * kTokens;
    float* ds = dscores + r * kTokens;
    const int64_t seen = diagonal ? r + 1 : extent.keys;
    // A loop each: GCC makes vectors of neither with the condition in it.
    for (int64_t j = 0; j < seen; ++j) p[j] = fast_exp(p[j] - lse[r]);
    for (int64_t j = seen; j < extent.keys; ++j) p[j] = 0.0f;
    for (int64_t j = 0; j < hidden[r]; ++j) p[j] = 0.0f;
    for (int64_t j = 0; j < extent.keys; ++j) ds[j] = p[j] * (ds[j] - inner[r]);
  }
}

TELAR_SIMD void inner_products(const float* __restrict a, const float* __restrict b, int64_t rows, int64_t pitch,
                               float* __restrict result) {
  for (int64_t r = 0; r < rows; ++r) {
    result[r] = sum_of(pitch, [=](int64_t d) { return a[r * pitch + d] * b[r * pitch + d]; });
  }
}

// One block of queries, loaded, against one block of keys: adds to dkeys, dvalues and dqueries.
void attend_backward(const BackwardWorkspace& w, const Extent& extent, int64_t head_dim, int64_t keys,
                     const int64_t* hidden, bool diagonal) {
  const int64_t pitch = pitch_of(head_dim), at = keys * kTokens * pitch;
  const auto against_queries = [&](const float* a, const float* b_transposed, float* c) {
    multiply({.m = extent.queries,
              .n = extent.keys,
              .k = head_dim,
              .a = a,
              .a_row = pitch,
              .a_column = 1,
              .b = b_transposed,
              .b_row = kTokens,
              .c = c,
              .c_row = kTokens,
              .accumulate = false});
  };
  against_queries(w.queries, w.keys_transposed + at, w.scores);
  against_queries(w.doutputs, w.values_transposed + at, w.dscores);
  softmax_backward(extent, w.scores, w.dscores, w.lse, w.inner, hidden, diagonal);
  const auto add_product = [&](const float* a, bool transposed, const float* b, float* c) {
    multiply({.m = transposed ? extent.keys : extent.queries,
              .n = pitch,
              .k = transposed ? extent.queries : extent.keys,
              .a = a,
              .a_row = transposed ? 1 : kTokens,
              .a_column = transposed ? kTokens : 1,
              .b = b,
              .b_row = pitch,
              .c = c,
              .c_row = pitch,
              .accumulate = true});
  };
  add_product(w.scores, true, w.doutputs, w.dvalues + at);
  add_product(w.dscores, true, w.queries, w.dkeys + at);  // The queries are scaled already.
  add_product(w.dscores, false, w.keys + at, w.dqueries);
}

// One sequence's rows of every tensor, by its first one.
template <typename T>
struct Rows {
  const T* qkv;
  Starts starts;
  const T* o;
  const T* d_o;
  const float* lse;  // [heads, sequence]
  T* dqkv;
};

template <typename T>
void attend_head_backward(const AttentionDims& dims, const PackedRow& at, int64_t head, const Rows<T>& rows,
                          const BackwardWorkspace& w) {
  const int64_t pitch = pitch_of(at.d), out_width = at.h * at.d;
  const float scale = 1.0f / std::sqrt(static_cast<float>(at.d));
  for (int64_t block = 0; block < blocks_of(dims.sequence); ++block) {
    const int64_t first = block * kTokens, n = std::min(kTokens, dims.sequence - first);
    load_block(rows.qkv + first * at.width() + at.query(head), at.width(), n, at.d, scale, w.queries);
    load_block(rows.o + first * out_width + head * at.d, out_width, n, at.d, 1.0f, w.outputs);
    load_block(rows.d_o + first * out_width + head * at.d, out_width, n, at.d, 1.0f, w.doutputs);
    inner_products(w.outputs, w.doutputs, padded_rows(n), pitch, w.inner);
    std::copy_n(rows.lse + head * dims.sequence + first, n, w.lse);
    std::fill(w.lse + n, w.lse + kTokens, std::numeric_limits<float>::infinity());
    std::fill_n(w.dqueries, kTokens * pitch, 0.0f);
    // The first query has the earliest start.
    for (int64_t keys = rows.starts[first] / kTokens; keys <= block; ++keys) {
      int64_t hidden[kTokens] = {};
      for (int64_t r = 0; r < n; ++r) {
        hidden[r] = std::clamp<int64_t>(rows.starts[first + r] - keys * kTokens, 0, kTokens);
      }
      const Extent extent = Extent::of(n, std::min(kTokens, dims.sequence - keys * kTokens));
      attend_backward(w, extent, at.d, keys, hidden, keys == block);
    }
    store_block(w.dqueries, n, at.d, scale, rows.dqkv + first * at.width() + at.query(head), at.width());
  }
}

// A kv head with all the query heads that share it, so that their sums have one order.
template <typename T>
void attend_group_backward(const AttentionDims& dims, int64_t kv_head, const Rows<T>& rows) {
  const PackedRow at(dims);
  const BackwardWorkspace w(dims.sequence, at.d);
  const int64_t block_size = kTokens * pitch_of(at.d), blocks = blocks_of(dims.sequence), group = at.h / at.k;
  const auto rows_of = [&](int64_t block) { return std::min(kTokens, dims.sequence - block * kTokens); };
  for (int64_t block = 0; block < blocks; ++block) {
    const T* row = rows.qkv + block * kTokens * at.width();
    float* keys = w.keys + block * block_size;
    load_block(row + at.key(kv_head), at.width(), rows_of(block), at.d, 1.0f, keys);
    transpose_block(keys, rows_of(block), at.d, w.keys_transposed + block * block_size);
    load_block(row + at.value(kv_head), at.width(), rows_of(block), at.d, 1.0f, w.spare);
    transpose_block(w.spare, rows_of(block), at.d, w.values_transposed + block * block_size);
  }
  std::fill_n(w.dkeys, blocks * block_size, 0.0f);
  std::fill_n(w.dvalues, blocks * block_size, 0.0f);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    attend_head_backward(dims, at, head, rows, w);
  }
  for (int64_t block = 0; block < blocks; ++block) {
    T* row = rows.dqkv + block * kTokens * at.width();
    store_block(w.dkeys + block * block_size, rows_of(block), at.d, 1.0f, row + at.key(kv_head), at.width());
    store_block(w.dvalues + block * block_size, rows_of(block), at.d, 1.0f, row + at.value(kv_head), at.width());
  }
}

}  // namespace

absl::Status CpuKernels::attention_backward(Stream&, const AttentionDims& dims, In qkv, In starts, In o, In lse, In d_o,
                                            Out dqkv) {
  if (absl::Status status = check_attention_backward(dims, qkv, starts, o, lse, d_o, dqkv); !status.ok()) return status;
  if (absl::Status status = check_starts("attention_backward", starts, dims.sequence); !status.ok()) return status;
  with_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(dims.batch * dims.kv_heads, [&](int64_t task) {
      const int64_t batch = task / dims.kv_heads, row = batch * dims.sequence;
      attend_group_backward<T>(
          dims, task % dims.kv_heads,
          {qkv.as<T>() + row * qkv.cols(), Starts(starts).from(row), o.as<T>() + row * o.cols(),
           d_o.as<T>() + row * o.cols(), lse.as<float>() + row * dims.heads, dqkv.as<T>() + row * qkv.cols()});
    });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
