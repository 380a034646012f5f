// Weights in the types that files store them in, and as the f32 that we compute with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "worker/backend/dtype.h"

namespace telar::convert {

// F32, BF16 and F16; nothing for another name.
std::optional<backend::DType> weight_dtype(std::string_view name);

// `in` holds out.size() elements of `dtype`, at any alignment. Exact.
void widen(std::span<const std::byte> in, backend::DType dtype, std::span<float> out);

// The reverse, rounded to nearest, ties to even. False where a finite value became infinite: `dtype` cannot hold it.
bool narrow(std::span<const float> in, backend::DType dtype, std::span<std::byte> out);

// out[column * out_stride + row] = in[row * columns + column]; out_stride >= rows.
void transpose(std::span<const float> in, int64_t rows, int64_t columns, float* out, int64_t out_stride);

}  // namespace telar::convert
