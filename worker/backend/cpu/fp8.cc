// FP8 by emulation: operands are rounded to the 8-bit types and widened again, exactly, for products in f32.
#include "worker/backend/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/simd.h"

namespace telar::backend::cpu {

namespace {

// Magnitudes compared as integers: NaN is above infinity, and that above all else.
template <typename T>
TELAR_SIMD int32_t greatest_magnitude(const T* x, int64_t n) {
  int32_t greatest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(load(x[i])) & 0x7fffffff;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  return greatest;
}

// An infinity times 0 is NaN; whatever else is not changed by it.
template <typename T, typename Q>
TELAR_SIMD void quantize_row(const T* x, float scale, Q* q, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(load(x[i]) * scale + load(x[i]) * 0.0f, q[i]);
}

template <typename Q>
TELAR_SIMD void dequantize_piece(const Q* q, float inverse, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = load(q[i]) * inverse;
}

template <typename Visit>
auto with_fp8_type(DType dtype, const Visit& visit) {
  return dtype == DType::kF8E4M3 ? visit(F8E4M3()) : visit(F8E5M2());
}

// Rows [first, last), whose quantised values are at `rows`, as columns of `columns`.
template <typename Q>
void transpose_rows(const Q* rows, int64_t first, int64_t last, int64_t height, int64_t width, Q* columns) {
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t t = first; t < last; ++t) columns[c * height + t] = rows[(t - first) * width + c];
  }
}

// Whose blocks they are: rows [first, last) of q, columns in blocks.
template <typename Q>
void dequantize_blocks(const Q* q, const In& inverse, Fp8Scaled scaled, int64_t first, int64_t last, int64_t width,
                       float* to) {
  for (int64_t row = first; row < last; ++row) {
    for (int64_t block = 0; block < fp8_blocks(width); ++block) {
      const int64_t at =
          scaled == Fp8Scaled::kRuns ? block * inverse.cols() + row : row / kFp8Block * inverse.cols() + block;
      const int64_t from = block * kFp8Block, n = std::min(kFp8Block, width - from);
      dequantize_piece(q + row * width + from, inverse.as<float>()[at], to + row * width + from, n);
    }
  }
}

Operand dequantized(const In& q, const In& inverse_scale, Scratch use) {
  float* to = scratch(use, q.elements());
  if (const Fp8Scaled scaled = fp8_scaled(q, inverse_scale); scaled != Fp8Scaled::kWhole) {
    with_fp8_type(q.dtype, [&](auto type) {
      const auto* from = q.as<decltype(type)>();
      parallel_pieces(q.rows(), kRowPiece, [&](int64_t first, int64_t last) {
        dequantize_blocks(from, inverse_scale, scaled, first, last, q.cols(), to);
      });
    });
    return {reinterpret_cast<const std::byte*>(to), DType::kF32, q.cols(), 1};
  }
  const float inverse = *inverse_scale.as<float>();
  with_fp8_type(q.dtype, [&](auto type) {
    const auto* from = q.as<decltype(type)>();
    parallel_pieces(q.elements(), kElementPiece, [=](int64_t first, int64_t last) {
      dequantize_piece(from + first, inverse, to + first, last - first);
    });
  });
  return {reinterpret_cast<const std::byte*>(to), DType::kF32, q.cols(), 1};
}

Product product_of(const In& a, const In& a_inverse, const In& b, const In& b_inverse) {
  Product product{.m = a.rows(),
                  .n = b.rows(),
                  .k = a.cols(),
                  .a = dequantized(a, a_inverse, Scratch::kLeft),
                  .b = dequantized(b, b_inverse, Scratch::kRight)};
  std::swap(product.b.row_stride, product.b.column_stride);
  return product;
}

// A block of x, `rows` by `columns`, from (row, column) on.
struct Block {
  int64_t row, rows, column, columns;
};

template <typename Q, typename T>
float block_scale(const T* x, int64_t width, const Block& block) {
  int32_t greatest = 0;
  for (int64_t t = block.row; t < block.row + block.rows; ++t) {
    greatest = std::max(greatest, greatest_magnitude(x + t * width + block.column, block.columns));
  }
  return fp8_scale(std::bit_cast<float>(greatest), DTypeOf<Q>::value);
}

// Writes the block into the copies that are there, x being [height, width].
template <typename Q, typename T>
void quantize_block(const T* x, int64_t height, int64_t width, const Block& block, float scale, Q* rows, Q* columns) {
  Q values[kFp8Block];
  for (int64_t t = block.row; t < block.row + block.rows; ++t) {
    quantize_row(x + t * width + block.column, scale, values, block.columns);
    if (rows != nullptr) std::copy(values, values + block.columns, rows + t * width + block.column);
    if (columns == nullptr) continue;
    for (int64_t c = 0; c < block.columns; ++c) columns[(block.column + c) * height + t] = values[c];
  }
}

// Rows of x from a multiple of kFp8Block on, at most as many.
template <typename Q, typename T>
void quantize_block_row(const In& x, bool square, int64_t first, int64_t count, const Out& rows,
                        const Out& rows_inverse, const Out& columns, const Out& columns_inverse) {
  const int64_t height = x.rows(), width = x.cols();
  Q* const to_rows = rows.absent() ? nullptr : rows.as<Q>();
  Q* const to_columns = columns.absent() ? nullptr : columns.as<Q>();
  const auto make = [&](const Block& block, Q* into_rows, Q* into_columns) {
    const float scale = block_scale<Q>(x.as<T>(), width, block);
    quantize_block(x.as<T>(), height, width, block, scale, into_rows, into_columns);
    const int64_t row = block.row / kFp8Block, column = block.column / kFp8Block;
    if (into_rows != nullptr) {
      const int64_t at = square ? row * rows_inverse.cols() + column : column * height + block.row;
      rows_inverse.as<float>()[at] = 1.0f / scale;
    }
    if (into_columns != nullptr) {
      const int64_t at = square ? column * columns_inverse.cols() + row : row * width + block.column;
      columns_inverse.as<float>()[at] = 1.0f / scale;
    }
  };
  for (int64_t column = 0; column < width; column += kFp8Block) {
    const int64_t n = std::min(kFp8Block, width - column);
    if (square) {
      make({first, count, column, n}, to_rows, to_columns);
      continue;
    }
    for (int64_t t = first; to_rows != nullptr && t < first + count; ++t) make({t, 1, column, n}, to_rows, nullptr);
    for (int64_t c = column; to_columns != nullptr && c < column + n; ++c)
      make({first, count, c, 1}, nullptr, to_columns);
  }
}

}  // namespace

absl::Status CpuKernels::transpose(Stream&, In x, Out y) {
  if (absl::Status status = check_transpose(x, y); !status.ok()) return status;
  parallel_pieces(x.rows(), kRowPiece, [&](int64_t first, int64_t last) {
    transpose_rows(x.as<uint8_t>() + first * x.cols(), first, last, x.rows(), x.cols(), y.as<uint8_t>());
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::inverse_scales(Stream&, In amax, Out inverses) {
  if (absl::Status status = check_inverse_scales(amax, inverses); !status.ok()) return status;
  std::fill_n(inverses.as<float>(), inverses.elements(), 0.0f);
  for (int64_t n = 0; n < amax.elements(); ++n) {
    inverses.as<float>()[4 * n] = 1.0f / fp8_scale(amax.as<float>()[n], DType::kF8E4M3);
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::quantize_blocks(Stream&, In x, bool square, Out rows, Out rows_inverse, Out columns,
                                         Out columns_inverse) {
  absl::Status status = check_quantize_blocks(x, square, rows, rows_inverse, columns, columns_inverse);
  if (!status.ok()) return status;
  with_type(x.dtype, [&](auto type) {
    with_fp8_type(rows.absent() ? columns.dtype : rows.dtype, [&](auto quantized) {
      parallel_pieces(x.rows(), kFp8Block, [&](int64_t first, int64_t last) {
        quantize_block_row<decltype(quantized), decltype(type)>(x, square, first, last - first, rows, rows_inverse,
                                                                columns, columns_inverse);
      });
    });
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::amax(Stream&, In x, In known, Out amax) {
  if (absl::Status status = check_amax(x, known, amax); !status.ok()) return status;
  if (!known.absent() && *known.as<float>() > 0) {
    *amax.as<float>() = *known.as<float>();
    return absl::OkStatus();
  }
  const int64_t pieces = (x.elements() + kElementPiece - 1) / kElementPiece;
  int32_t* partials = scratch<int32_t>(Scratch::kPartials, pieces);
  with_type(x.dtype, [&](auto type) {
    const auto* from = x.as<decltype(type)>();
    parallel_pieces(x.elements(), kElementPiece, [=](int64_t first, int64_t last) {
      partials[first / kElementPiece] = greatest_magnitude(from + first, last - first);
    });
  });
  *amax.as<float>() = std::bit_cast<float>(*std::max_element(partials, partials + pieces));
  return absl::OkStatus();
}

absl::Status CpuKernels::quantize(Stream&, In x, In amax, Out rows, Out columns, Out inverse_scale, InOut seen) {
  if (absl::Status status = check_quantize(x, amax, rows, columns, inverse_scale, seen); !status.ok()) return status;
  const DType dtype = rows.absent() ? columns.dtype : rows.dtype;
  const float scale = fp8_scale(*amax.as<float>(), dtype);
  *inverse_scale.as<float>() = 1.0f / scale;
  const int64_t height = x.rows(), width = x.cols(), pieces = (height + kRowPiece - 1) / kRowPiece;
  int32_t* greatest = seen.absent() ? nullptr : scratch<int32_t>(Scratch::kPartials, pieces);
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    with_fp8_type(dtype, [&](auto quantized) {
      using Q = decltype(quantized);
      parallel_pieces(height, kRowPiece, [&](int64_t first, int64_t last) {
        const int64_t n = (last - first) * width;
        if (greatest != nullptr) greatest[first / kRowPiece] = greatest_magnitude(x.as<T>() + first * width, n);
        Q* to = rows.absent() ? scratch<Q>(Scratch::kRows, n) : rows.as<Q>() + first * width;
        quantize_row(x.as<T>() + first * width, scale, to, n);
        if (!columns.absent()) transpose_rows(to, first, last, height, width, columns.as<Q>());
      });
    });
  });
  if (greatest == nullptr) return absl::OkStatus();
  const float found = std::bit_cast<float>(*std::max_element(greatest, greatest + pieces));
  const float orderly = std::isnan(found) ? std::numeric_limits<float>::infinity() : found;
  *seen.as<float>() = std::max(*seen.as<float>(), orderly);
  return absl::OkStatus();
}

absl::Status CpuKernels::history_amax(Stream&, In history, bool newest, float margin, Out amax) {
  if (absl::Status status = check_history_amax(history, amax); !status.ok()) return status;
  for (int64_t n = 0; n < history.rows(); ++n) {
    const float* row = history.as<float>() + n * history.cols();
    amax.as<float>()[n] = margin * (newest ? row[0] : *std::max_element(row, row + history.cols()));
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::push_history(Stream&, In amax, InOut history) {
  if (absl::Status status = check_push_history(amax, history); !status.ok()) return status;
  for (int64_t n = 0; n < history.rows(); ++n) {
    const float newest = amax.as<float>()[n];
    float* row = history.as<float>() + n * history.cols();
    if (!std::isfinite(newest)) continue;
    std::copy_backward(row, row + history.cols() - 1, row + history.cols());
    row[0] = newest;
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::fp8_product(Stream&, In a, In a_inverse, In b, In b_inverse, In bias, bool, Out y) {
  if (absl::Status status = check_fp8_product(a, a_inverse, b, b_inverse, bias, y); !status.ok()) return status;
  Product product = product_of(a, a_inverse, b, b_inverse);
  product.bias = bias.data;
  product.bias_dtype = bias.dtype;
  product.c = y.data;
  product.c_dtype = y.dtype;
  return matmul_.run(product);
}

absl::Status CpuKernels::fp8_wgrad(Stream&, In a, In a_inverse, In b, In b_inverse, bool accumulate, InOut dweight) {
  if (absl::Status status = check_fp8_wgrad(a, a_inverse, b, b_inverse, dweight); !status.ok()) return status;
  Product product = product_of(a, a_inverse, b, b_inverse);
  product.c = dweight.data;
  product.accumulate = accumulate;
  return matmul_.run(product);
}

}  // namespace telar::backend::cpu
