// How a tensor is scaled into the range of an 8-bit float: by a power of two, from its greatest magnitude.
//
// A power of two costs up to a binade of the range, and makes all else exact: scaling there and back rounds nothing,
// and a value has the same FP8 number, up to the exponent, under any such scale that keeps it a normal one.
#pragma once

#include <bit>
#include <cstdint>

#include "worker/backend/dtype.h"

namespace telar::backend {

inline constexpr int64_t kFp8Multiple = 16;  // Of extents that tensor cores take; see Kernels::fp8_product.

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
