// Pieces that several op families share: weights widened to float, and sums over rows in a fixed order.
#pragma once

#include <algorithm>
#include <cstring>

#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/simd.h"
#include "worker/backend/view.h"

namespace telar::backend::cpu {

// The vector as floats: itself, or a widened copy at `to`.
inline const float* widen(const View& vector, float* to) {
  if (vector.dtype == DType::kF32) return reinterpret_cast<const float*>(vector.data);
  with_type(vector.dtype, [&](auto type) {
    const auto* from = reinterpret_cast<const decltype(type)*>(vector.data);
    for (int64_t i = 0; i < vector.elements(); ++i) to[i] = load(from[i]);
  });
  return to;
}

TELAR_INLINE void accumulate(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// sum_piece(first, last, partial) adds rows [first, last) to partial[width], which is zeroed before. Pieces have
// kRowPiece rows; total(c, n, sum) is then called once for columns [c, c + n) of the sum of all in row order. So what a
// call adds to a gradient is one summand, and two calls sum up as two ranks do.
template <typename SumPiece, typename Total>
void sum_rows(int64_t rows, int64_t width, const SumPiece& sum_piece, const Total& total) {
  const int64_t pieces = (rows + kRowPiece - 1) / kRowPiece;
  if (pieces == 0) return;
  float* partials = scratch(Scratch::kPartials, pieces * width);
  parallel_for(pieces, [&](int64_t piece) {
    float* partial = partials + piece * width;
    std::fill_n(partial, width, 0.0f);
    sum_piece(piece * kRowPiece, std::min(rows, (piece + 1) * kRowPiece), partial);
  });
  parallel_pieces(width, 1024, [&](int64_t first, int64_t last) {
    for (int64_t piece = 1; piece < pieces; ++piece) {
      accumulate(partials + piece * width + first, partials + first, last - first);
    }
    total(first, last - first, partials + first);
  });
}

// Of any type; the sum is f32.
template <typename T>
TELAR_SIMD void accumulate_row(const T* row, float* to, int64_t n) {
  for (int64_t c = 0; c < n; ++c) to[c] += load(row[c]);
}

// sums: f32 [x.cols()] accumulates the sums of x's columns.
inline void add_column_sums(const In& x, const InOut& sums) {
  const int64_t width = x.cols();
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    sum_rows(
        x.rows(), width,
        [&](int64_t first, int64_t last, float* partial) {
          for (int64_t t = first; t < last; ++t) accumulate_row(x.as<T>() + t * width, partial, width);
        },
        [&](int64_t column, int64_t n, const float* partial) {
          accumulate_row(partial, sums.as<float>() + column, n);
        });
  });
}

}  // namespace telar::backend::cpu
