#include "worker/backend/cpu/block_product.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace telar::backend::cpu {

namespace {

// Each tile keeps rows x columns of c in registers and walks down k once.

void tile_plain(const BlockProduct& p, const float* a, const float* b, float* c) {
  constexpr int kRows = 8, kColumns = 16;
  float sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) sum[r][j] = p.accumulate ? c[r * p.c_row + j] : 0.0f;
  }
  for (int64_t i = 0; i < p.k; ++i) {
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * p.a_row + i * p.a_column];
      for (int j = 0; j < kColumns; ++j) sum[r][j] += factor * b[i * p.b_row + j];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) c[r * p.c_row + j] = sum[r][j];
  }
}

void multiply_plain(const BlockProduct& p) {
  for (int64_t i = 0; i < p.m; i += 8) {
    for (int64_t j = 0; j < p.n; j += 16) tile_plain(p, p.a + i * p.a_row, p.b + j, p.c + i * p.c_row + j);
  }
}

#if defined(__x86_64__)

// 4 x 16: eight sums, two of b, one of a in sixteen registers.
__attribute__((target("avx2,fma"))) void tile_avx2(const BlockProduct& p, const float* a, const float* b, float* c) {
  __m256 sum[4][2];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    sum[r][0] = p.accumulate ? _mm256_loadu_ps(c + r * p.c_row) : _mm256_setzero_ps();
    sum[r][1] = p.accumulate ? _mm256_loadu_ps(c + r * p.c_row + 8) : _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < p.k; ++i) {
    const __m256 low = _mm256_loadu_ps(b + i * p.b_row), high = _mm256_loadu_ps(b + i * p.b_row + 8);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const __m256 factor = _mm256_broadcast_ss(a + r * p.a_row + i * p.a_column);
      sum[r][0] = _mm256_fmadd_ps(factor, low, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(factor, high, sum[r][1]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    _mm256_storeu_ps(c + r * p.c_row, sum[r][0]);
    _mm256_storeu_ps(c + r * p.c_row + 8, sum[r][1]);
  }
}

void multiply_avx2(const BlockProduct& p) {
  for (int64_t i = 0; i < p.m; i += 4) {
    for (int64_t j = 0; j < p.n; j += 16) tile_avx2(p, p.a + i * p.a_row, p.b + j, p.c + i * p.c_row + j);
  }
}

// 8 x (16 kVectors): with two vectors, sixteen sums in thirty-two registers.
template <int kVectors>
__attribute__((target("avx512f"))) void tile_avx512(const BlockProduct& p, const float* a, const float* b, float* c) {
  __m512 sum[8][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.accumulate ? _mm512_loadu_ps(c + r * p.c_row + 16 * v) : _mm512_setzero_ps();
    }
  }
  for (int64_t i = 0; i < p.k; ++i) {
    __m512 row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = _mm512_loadu_ps(b + i * p.b_row + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      const __m512 factor = _mm512_set1_ps(a[r * p.a_row + i * p.a_column]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(factor, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + r * p.c_row + 16 * v, sum[r][v]);
  }
}

void multiply_avx512(const BlockProduct& p) {
  for (int64_t i = 0; i < p.m; i += 8) {
    const float* a = p.a + i * p.a_row;
    float* c = p.c + i * p.c_row;
    int64_t j = 0;
    for (; j + 32 <= p.n; j += 32) tile_avx512<2>(p, a, p.b + j, c + j);
    if (j < p.n) tile_avx512<1>(p, a, p.b + j, c + j);
  }
}

#endif

using Multiply = void (*)(const BlockProduct&);

Multiply choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_avx2;
#endif
  return multiply_plain;
}

}  // namespace

void multiply(const BlockProduct& product) {
  static const Multiply chosen = choose();
  chosen(product);
}

}  // namespace telar::backend::cpu
