// How a tensor is scaled into the range of an 8-bit float: by a power of two, from its greatest magnitude.
//
// A power of two costs up to a binade of the range, and makes all else exact: scaling there and back rounds nothing,
// and a value has the same FP8 number, up to the exponent, under any such scale that keeps it a normal one.
#pragma once

#include <bit>
#include <cstdint>

#include "worker/backend/dtype.h"
#include "worker/backend/view.h"

namespace telar::backend {

inline constexpr int64_t kFp8Multiple = 16;  // Of extents that tensor cores take; see Kernels::fp8_product.

// What has one scale. The inverse scales of an FP8 tensor q[R, K], whose rows a product sums along: f32 [1];
// [blocks of K, R]; [blocks of R, blocks of K rounded up to a multiple of 4], what is beyond being nothing. No two of
// these are the same shape where R is a multiple of 16.
enum class Fp8Scaled : uint8_t { kWhole, kRuns, kSquares };
inline constexpr int64_t kFp8Block = 128;  // Elements of a run; rows and columns of a square. The last may be shorter.
constexpr int64_t fp8_blocks(int64_t extent) { return (extent + kFp8Block - 1) / kFp8Block; }
inline Shape fp8_inverse_shape(Fp8Scaled scaled, int64_t rows, int64_t columns) {
  if (scaled == Fp8Scaled::kWhole) return {1};
  if (scaled == Fp8Scaled::kRuns) return {fp8_blocks(columns), rows};
  return {fp8_blocks(rows), (fp8_blocks(columns) + 3) / 4 * 4};
}
// By the shape of the inverse scales of q; what has none of these shapes counts as whole.
inline Fp8Scaled fp8_scaled(const View& q, const View& inverse) {
  if (q.elements() == 0) return Fp8Scaled::kWhole;
  for (const Fp8Scaled scaled : {Fp8Scaled::kRuns, Fp8Scaled::kSquares}) {
    if (inverse.shape == fp8_inverse_shape(scaled, q.rows(), q.cols())) return scaled;
  }
  return Fp8Scaled::kWhole;
}

// The greatest power of two with amax * scale <= the largest number of `dtype` (1.75 * 2^8 or 2^15), but at most 2^126,
// so that its inverse is a normal number. 1 where amax is 0; NaN where it is not finite. `amax` is at least 0.
constexpr float fp8_scale(float amax, DType dtype) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax);
  if (bits == 0) return 1.0f;
  if (bits >= 0x7f800000u) return std::bit_cast<float>(0x7fc00000u);
  const int most = dtype == DType::kF8E4M3 ? 8 : 15;
  const int exponent = static_cast<int>(bits >> 23) - 127;
  int scale = most - exponent - ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  if (scale > 126) scale = 126;
  return std::bit_cast<float>(static_cast<uint32_t>(scale + 127) << 23);
}

}  // namespace telar::backend
