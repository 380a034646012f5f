// Loading and storing of the blocks that attention's forward and backward work on: 64 tokens of one head, as f32,
// columns padded with zeros to a multiple of kBlockColumns ("pitch") and rows to 64. The last block of a sequence may
// have few tokens, and a short sequence has no other: what is computed of a block's rows are those that multiples of
// kBlockRows (queries) or kBlockColumns (keys) cover.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/backend/cpu/block_product.h"
#include "worker/backend/cpu/simd.h"
#include "worker/backend/kernels.h"

namespace telar::backend::cpu {

inline constexpr int64_t kTokens = 64;  // Rows of a block of queries, and of a block of keys and values.
static_assert(kTokens % kBlockColumns == 0 && kBlockColumns % kBlockRows == 0);

inline int64_t padded_rows(int64_t n) { return (n + kBlockRows - 1) / kBlockRows * kBlockRows; }
inline int64_t padded_columns(int64_t n) { return (n + kBlockColumns - 1) / kBlockColumns * kBlockColumns; }
inline int64_t pitch_of(int64_t head_dim) { return padded_columns(head_dim); }
inline int64_t blocks_of(int64_t sequence) { return (sequence + kTokens - 1) / kTokens; }

// rows x head_dim at `from` (rows `stride` apart), times `scale`, to block[kTokens][pitch]. Rows behind
// padded_columns(rows) keep what they were: nobody computes with them.
template <typename T>
TELAR_SIMD void load_block(const T* __restrict from, int64_t stride, int64_t rows, int64_t head_dim, float scale,
                           float* __restrict block) {
  const int64_t pitch = pitch_of(head_dim);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < head_dim; ++d) block[r * pitch + d] = load(from[r * stride + d]) * scale;
    for (int64_t d = head_dim; d < pitch; ++d) block[r * pitch + d] = 0;
  }
  std::fill(block + rows * pitch, block + padded_columns(rows) * pitch, 0.0f);
}

// Of block[kTokens][pitch] the loaded `rows` -> transposed[head_dim][kTokens].
TELAR_SIMD inline void transpose_block(const float* __restrict block, int64_t rows, int64_t head_dim,
                                       float* __restrict transposed) {
  const int64_t pitch = pitch_of(head_dim), padded = padded_columns(rows);
  for (int64_t d = 0; d < head_dim; ++d) {
    for (int64_t r = 0; r < padded; ++r) transposed[d * kTokens + r] = block[r * pitch + d];
  }
}

template <typename T>
TELAR_SIMD void store_block(const float* __restrict block, int64_t rows, int64_t head_dim, float scale,
                            T* __restrict to, int64_t stride) {
  const int64_t pitch = pitch_of(head_dim);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < head_dim; ++d) store(block[r * pitch + d] * scale, to[r * stride + d]);
  }
}

// What is computed of one block of scores[kTokens][kTokens]: rows of queries, a multiple of kBlockRows, and columns of
// keys, a multiple of kBlockColumns. of() has the tokens that there are.
struct Extent {
  static Extent of(int64_t queries, int64_t keys) { return {padded_rows(queries), padded_columns(keys)}; }
  int64_t queries, keys;
};

// Where the first element of a head is, in a row of packed qkv.
struct PackedRow {
  explicit PackedRow(const AttentionDims& dims) : d(dims.head_dim), h(dims.heads), k(dims.kv_heads) {}
  int64_t width() const { return (h + 2 * k) * d; }
  int64_t query(int64_t head) const { return head * d; }
  int64_t key(int64_t kv_head) const { return (h + kv_head) * d; }
  int64_t value(int64_t kv_head) const { return (h + k + kv_head) * d; }
  int64_t d, h, k;
};

}  // namespace telar::backend::cpu
