// Small products of f32 blocks that are in cache: what attention is made of.
#pragma once

#include <cstdint>

namespace telar::backend::cpu {

// c[m, n] = a[m, k] b[k, n], or += . a has any strides, so it may be a transpose; rows of b and c are contiguous.
// m is a multiple of kBlockRows and n of kBlockColumns: callers pad. Serial; the order of each sum is fixed.
inline constexpr int64_t kBlockRows = 8;
inline constexpr int64_t kBlockColumns = 16;
struct BlockProduct {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  bool accumulate;
};
void multiply(const BlockProduct& product);

}  // namespace telar::backend::cpu
