// GELU's tanh form and its derivative, element by element.
//
// It is x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), as (1 + tanh u) / 2 = sigmoid(2u).
#pragma once

#include "worker/backend/cuda/fast_math.cuh"

namespace telar::backend::cuda {

inline constexpr float kGeluSlope = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.044715f;

// -log2(e) 2u.
__device__ inline float gelu_exponent(float x) {
  constexpr float kLinear = -kLog2E * kGeluSlope, kThird = kLinear * kGeluCubic;
  return x * fmaf(x * x, kThird, kLinear);
}

struct Gelu {
  __device__ float operator()(float x) const { return x * fast_reciprocal(1.0f + fast_exp2(gelu_exponent(x))); }
};

// d/dx x s(2u) = s + x s (1 - s) 2u'.
struct GeluBackward {
  __device__ float operator()(float dy, float x) const {
    const auto [s, rest] = sigmoid_parts(gelu_exponent(x));
    const float slope = fmaf(x * x, 3.0f * kGeluCubic * kGeluSlope, kGeluSlope);
    return dy * s * fmaf(x * slope, rest, 1.0f);
  }
};

}  // namespace telar::backend::cuda
