// What lets plain loops run at vector speed on any x86-64 machine from one build.
//
// A function marked TELAR_SIMD is compiled for AVX-512, AVX2+FMA and the baseline, and the loader picks one. Put no
// OpenMP pragma into such a function: the outlined body would be baseline code.
#pragma once

#include <bit>
#include <cstdint>

#include "worker/backend/dtype.h"

// Sanitizers instrument the resolvers, which run before the sanitizer's own start: baseline only there. Clang has no
// clones of templates.
#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define TELAR_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TELAR_SIMD
#endif
// Helpers called in hot loops have to be inlined, or they would keep the caller from being vectorised.
#define TELAR_INLINE __attribute__((always_inline)) inline

namespace telar::backend::cpu {

TELAR_INLINE float load(float value) { return value; }
TELAR_INLINE float load(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }
// F16's conversion, written without a branch: all three cases are computed, the right one is chosen.
TELAR_INLINE float load(F16 value) {
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>((magnitude & 0x007fffffu) + 0x38800000u) - 0x1p-14f);
  const uint32_t finite = magnitude >= 0x00800000u ? magnitude + 0x38000000u : subnormal;
  const uint32_t widened = magnitude >= 0x0f800000u ? magnitude + 0x70000000u : finite;
  return std::bit_cast<float>(widened | (static_cast<uint32_t>(value.bits & 0x8000u) << 16));
}

// F8's conversion, in the same way.
template <int kExponent, int kFraction, uint8_t kMost>
TELAR_INLINE float load(F8<kExponent, kFraction, kMost> value) {
  constexpr uint32_t kUp = (254u - ((1u << (kExponent - 1)) - 1)) << 23;
  const uint32_t magnitude = value.bits & 0x7fu, sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t finite =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << (23 - kFraction)) * std::bit_cast<float>(kUp));
  uint32_t widened = magnitude > kMost ? 0x7fc00000u : finite;
  if constexpr (kFraction == 2) widened = magnitude == 0x7cu ? 0x7f800000u : widened;
  return std::bit_cast<float>(widened | sign);
}

TELAR_INLINE void store(float value, float& to) { to = value; }
// Bf16's constructor, written without a branch.
TELAR_INLINE void store(float value, Bf16& to) {
  const uint32_t raw = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
  const uint32_t quiet = (raw >> 16) | 0x40u;
  to.bits = static_cast<uint16_t>((raw & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
// F16's constructor, in the same way.
TELAR_INLINE void store(float value, F16& to) {
  const uint32_t raw = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = raw & 0x7fffffffu;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t quiet = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t rounded = magnitude >= 0x38800000u ? normal : subnormal;
  rounded = magnitude >= 0x477ff000u ? 0x7c00u : rounded;
  rounded = magnitude > 0x7f800000u ? quiet : rounded;
  to.bits = static_cast<uint16_t>(((raw >> 16) & 0x8000u) | rounded);
}

// F8's constructor, in the same way.
template <int kExponent, int kFraction, uint8_t kMost>
TELAR_INLINE void store(float value, F8<kExponent, kFraction, kMost>& to) {
  constexpr uint32_t kBias = (1u << (kExponent - 1)) - 1, kUnits = (151u - kBias - kFraction) << 23;
  constexpr int kDropped = 23 - kFraction;
  const uint32_t raw = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = raw & 0x7fffffffu;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kUnits)) - kUnits;
  const uint32_t normal =
      (magnitude - ((127u - kBias) << 23) + (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u)) >> kDropped;
  uint32_t rounded = magnitude >= ((128u - kBias) << 23) ? normal : subnormal;
  rounded = rounded > kMost ? kMost : rounded;
  to.bits = static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : (((raw >> 24) & 0x80u) | rounded));
}

// Floats compared as integers: order-preserving for all but NaN, and a positive NaN is the largest. An integer maximum
// is a reduction that compilers vectorise without assuming away NaN.
TELAR_INLINE int32_t to_ordered(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
TELAR_INLINE float from_ordered(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

// term(0) + ... + term(n - 1), in an order that vectors like: element i goes to lane i mod 32, and the lanes are added
// in pairs. The compiler may not choose the order of a float sum, so it has to be written down.
template <typename T = float, typename Term>
TELAR_INLINE T sum_of(int64_t n, const Term& term) {
  constexpr int kLanes = 32;
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (; i < n; ++i) lanes[i % kLanes] += term(i);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// e^x within 2 ulp, denormal results and overflow to infinity included; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series to r^7 (remainder < 6e-9); 2^n in two halves, so that
// each is a normal float.
TELAR_INLINE float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // Nine bits, so that n * kLn2High is exact.
  constexpr float kLn2Low = -2.12194440e-4f;
  x = x > 89.0f ? 89.0f : x;
  x = x < -105.0f ? -105.0f : x;
  const float shifted = x * kLog2E;
  const int32_t n = static_cast<int32_t>(shifted + (shifted < 0 ? -0.5f : 0.5f));
  const float whole = static_cast<float>(n);
  const float r = (x - whole * kLn2High) - whole * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const int32_t half = n >> 1;
  const float scale_1 = std::bit_cast<float>((half + 127) << 23);
  const float scale_2 = std::bit_cast<float>((n - half + 127) << 23);
  return p * scale_1 * scale_2;
}

// 1 / (1 + e^-x); relative error a few ulp for every x.
TELAR_INLINE float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

}  // namespace telar::backend::cpu
