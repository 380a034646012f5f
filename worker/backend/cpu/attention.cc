// Causal attention by blocks with a running softmax (Milakov & Gimelshein 2018; Dao et al. 2022): a block of scores is
// made, used and forgotten, so memory is linear in the sequence.
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

constexpr int64_t kChunkBlocks = 4;  // Blocks of queries that share one loading of keys and values.

// One thread's memory, all f32.
struct Workspace {
  explicit Workspace(int64_t head_dim) {
    const int64_t block = kTokens * pitch_of(head_dim);
    float* next =
        scratch(Scratch::kAttention, (2 * kChunkBlocks + 3) * block + kTokens * kTokens + 2 * kChunkBlocks * kTokens);
    const auto take = [&](int64_t n) { return std::exchange(next, next + n); };
    queries = take(kChunkBlocks * block);
    outputs = take(kChunkBlocks * block);
    keys = take(block);
    keys_transposed = take(block);
    values = take(block);
    scores = take(kTokens * kTokens);
    maxima = take(kChunkBlocks * kTokens);
    sums = take(kChunkBlocks * kTokens);
  }
  float *queries, *outputs, *keys, *keys_transposed, *values, *scores, *maxima, *sums;
};

// A row of scores becomes e^(score - maximum); what was gathered before is rescaled to the new maximum. A row that has
// seen no key yet has maximum -inf, and nothing gathered.
TELAR_SIMD void softmax_block(const Extent& extent, float* __restrict scores, float* __restrict maxima,
                              float* __restrict sums, float* __restrict outputs, int64_t pitch) {
  for (int64_t r = 0; r < extent.queries; ++r) {
    float* row = scores + r * kTokens;
    int32_t largest = to_ordered(maxima[r]);
    for (int64_t j = 0; j < extent.keys; ++j) {
      const int32_t key = to_ordered(row[j]);
      largest = key > largest ? key : largest;
    }
    const float maximum = from_ordered(largest);
    const float shift = maximum == -std::numeric_limits<float>::infinity() ? 0.0f : maximum;
    const float correction = fast_exp(maxima[r] - shift);
    for (int64_t j = 0; j < extent.keys; ++j) row[j] = fast_exp(row[j] - shift);
    maxima[r] = maximum;
    sums[r] = sums[r] * correction + sum_of(extent.keys, [=](int64_t j) { return row[j]; });
    if (correction != 1.0f) {
      for (int64_t d = 0; d < pitch; ++d) outputs[r * pitch + d] *= correction;
    }
  }
}

// Keys after the query's own token don't count. On the diagonal there are as many queries as keys, and keys are padded
// further.
void mask_diagonal(const Extent& extent, float* scores) {
  for (int64_t r = 0; r < extent.queries; ++r) {
    std::fill(scores + r * kTokens + r + 1, scores + r * kTokens + extent.keys,
              -std::numeric_limits<float>::infinity());
  }
}

// Keys of earlier documents don't count. `starts` are those of the block's `rows` queries, the keys begin with `first`.
void mask_earlier(float* scores, const Starts& starts, int64_t rows, int64_t first) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t hidden = std::clamp<int64_t>(starts[r] - first, 0, kTokens);
    std::fill_n(scores + r * kTokens, hidden, -std::numeric_limits<float>::infinity());
  }
}

// Scores of one block of queries against the loaded keys, folded into the block's running state. `mask(scores)` takes
// out those of keys that the queries don't see.
template <typename Mask>
void attend(const Workspace& w, const Extent& extent, int64_t head_dim, int64_t block_in_chunk, const Mask& mask) {
  const int64_t pitch = pitch_of(head_dim);
  float* outputs = w.outputs + block_in_chunk * kTokens * pitch;
  multiply({.m = extent.queries,
            .n = extent.keys,
            .k = head_dim,
            .a = w.queries + block_in_chunk * kTokens * pitch,
            .a_row = pitch,
            .a_column = 1,
            .b = w.keys_transposed,
            .b_row = kTokens,
            .c = w.scores,
            .c_row = kTokens,
            .accumulate = false});
  mask(w.scores);
  softmax_block(extent, w.scores, w.maxima + block_in_chunk * kTokens, w.sums + block_in_chunk * kTokens, outputs,
                pitch);
  multiply({.m = extent.queries,
            .n = pitch,
            .k = extent.keys,
            .a = w.scores,
            .a_row = kTokens,
            .a_column = 1,
            .b = w.values,
            .b_row = pitch,
            .c = outputs,
            .c_row = pitch,
            .accumulate = true});
}

// kChunkBlocks blocks of queries of one head, from block `first` on. `qkv`, `starts` and `o` point at the sequence's
// first row, `lse` at the head's first element.
template <typename T>
void attend_chunk(const AttentionDims& dims, int64_t head, int64_t first, const T* qkv, const Starts& starts, T* o,
                  float* lse) {
  const PackedRow at(dims);
  const Workspace w(at.d);
  const int64_t pitch = pitch_of(at.d), kv_head = head / (at.h / at.k);
  const int64_t end = std::min(first + kChunkBlocks, blocks_of(dims.sequence));
  const auto rows = [&](int64_t block) { return std::min(kTokens, dims.sequence - block * kTokens); };
  const float scale = 1.0f / std::sqrt(static_cast<float>(at.d));
  for (int64_t block = first; block < end; ++block) {
    load_block(qkv + block * kTokens * at.width() + at.query(head), at.width(), rows(block), at.d, scale,
               w.queries + (block - first) * kTokens * pitch);
  }
  std::fill_n(w.outputs, (end - first) * kTokens * pitch, 0.0f);
  std::fill_n(w.maxima, (end - first) * kTokens, -std::numeric_limits<float>::infinity());
  std::fill_n(w.sums, (end - first) * kTokens, 0.0f);
  // The first query of several has the earliest start.
  const auto first_keys = [&](int64_t block) { return starts[block * kTokens] / kTokens; };
  for (int64_t keys = first_keys(first); keys < end; ++keys) {
    const T* row = qkv + keys * kTokens * at.width();
    load_block(row + at.key(kv_head), at.width(), rows(keys), at.d, 1.0f, w.keys);
    transpose_block(w.keys, rows(keys), at.d, w.keys_transposed);
    load_block(row + at.value(kv_head), at.width(), rows(keys), at.d, 1.0f, w.values);
    for (int64_t block = std::max(first, keys); block < end && first_keys(block) <= keys; ++block) {
      const Extent extent = Extent::of(rows(block), rows(keys));
      attend(w, extent, at.d, block - first, [&](float* scores) {
        if (block == keys) mask_diagonal(extent, scores);
        if (!starts.absent()) mask_earlier(scores, starts.from(block * kTokens), rows(block), keys * kTokens);
      });
    }
  }
  for (int64_t block = first; block < end; ++block) {
    float* outputs = w.outputs + (block - first) * kTokens * pitch;
    for (int64_t r = 0; r < rows(block); ++r) {
      const int64_t state = (block - first) * kTokens + r;
      for (int64_t d = 0; d < pitch; ++d) outputs[r * pitch + d] /= w.sums[state];
      lse[block * kTokens + r] = w.maxima[state] + std::log(w.sums[state]);
    }
    store_block(outputs, rows(block), at.d, 1.0f, o + block * kTokens * at.h * at.d + head * at.d, at.h * at.d);
  }
}

}  // namespace

absl::Status CpuKernels::attention(Stream&, const AttentionDims& dims, In qkv, In starts, Out o, Out lse) {
  if (absl::Status status = check_attention(dims, qkv, starts, o, lse); !status.ok()) return status;
  if (absl::Status status = check_starts("attention", starts, dims.sequence); !status.ok()) return status;
  const int64_t chunks = (blocks_of(dims.sequence) + kChunkBlocks - 1) / kChunkBlocks;
  with_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(dims.batch * dims.heads * chunks, [&](int64_t task) {
      const int64_t chunk = task % chunks, head = task / chunks % dims.heads, batch = task / chunks / dims.heads;
      const int64_t row = batch * dims.sequence;
      attend_chunk(dims, head, chunk * kChunkBlocks, qkv.as<T>() + row * qkv.cols(), Starts(starts).from(row),
                   o.as<T>() + row * o.cols(), lse.as<float>() + (batch * dims.heads + head) * dims.sequence);
    });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
