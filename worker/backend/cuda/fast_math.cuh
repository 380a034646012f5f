// The special function unit's exponential and reciprocal, one instruction each and good to some 2^-22, and what is made
// of them. Subnormal results are zero.
#pragma once

#include <cuda_runtime.h>

namespace telar::backend::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {  // 0 of an infinity.
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Absolute error near 1e-7.
__device__ inline float sigmoid(float x) { return fast_reciprocal(1.0f + fast_exp2(-kLog2E * x)); }

// s = sigmoid and 1 - s, the latter without cancellation as e^-x s, of -log2(e) times the argument. The exponential is
// kept finite for that.
struct SigmoidParts {
  float s, rest;
};
__device__ inline SigmoidParts sigmoid_parts(float exponent) {
  const float exponential = fast_exp2(fminf(exponent, 115.0f));
  const float s = fast_reciprocal(1.0f + exponential);
  return {s, exponential * s};
}

}  // namespace telar::backend::cuda
