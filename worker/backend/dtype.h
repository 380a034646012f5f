// Element types of device memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace telar::backend {

enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kU8, kF8E4M3, kF8E5M2 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF8E5M2:
      return "f8e5m2";
  }
  return "?";
}

// Storage form of bfloat16: the upper half of an IEEE float. Arithmetic is done in float.
struct Bf16 {
  uint16_t bits = 0;

  Bf16() = default;
  // Rounds to nearest, ties to even; a NaN stays a quiet NaN.
  explicit Bf16(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    const bool is_nan = (raw & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<uint16_t>((raw >> 16) | 0x40u)
                  : static_cast<uint16_t>((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(Bf16) == 2);

// Storage form of IEEE binary16: 5 bits of exponent, 10 of fraction, subnormals. Arithmetic is done in float.
struct F16 {
  uint16_t bits = 0;

  F16() = default;
  // Rounds to nearest, ties to even; from 65520 on to infinity; a NaN stays a quiet NaN.
  explicit F16(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = raw & 0x7fffffffu;
    uint32_t rounded;
    if (magnitude > 0x7f800000u) {
      rounded = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {
      rounded = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {  // 2^-14, the least normal number.
      rounded = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    } else {  // The sum is rounded to a whole number of 2^-24, which is the subnormals' unit.
      rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    }
    bits = static_cast<uint16_t>(((raw >> 16) & 0x8000u) | rounded);
  }
  explicit operator float() const {
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    uint32_t widened;
    if (magnitude >= 0x0f800000u) {
      widened = magnitude + 0x70000000u;
    } else if (magnitude >= 0x00800000u) {
      widened = magnitude + 0x38000000u;
    } else {  // 2^-14 (1 + fraction) - 2^-14.
      widened = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + 0x38800000u) - 0x1p-14f);
    }
    return std::bit_cast<float>(widened | (static_cast<uint32_t>(bits & 0x8000u) << 16));
  }
};
static_assert(sizeof(F16) == 2);

// Storage forms of the Open Compute Project's 8-bit floats (OFP8, revision 1.0): E4M3 has no infinity, its largest
// number is 448; E5M2's is 57344. Arithmetic is done in float. `kMost`: the bits of the largest number.
template <int kExponentBits, int kFractionBits, uint8_t kMost>
struct F8 {
  uint8_t bits = 0;

  F8() = default;
  // Rounds to nearest, ties to even. Saturates: what is larger than the largest number, an infinity too, becomes that.
  // A NaN becomes 0x7f.
  explicit F8(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = raw & 0x7fffffffu;
    uint32_t rounded;
    if (magnitude >= kLeastNormal) {
      rounded = (magnitude - kRebias + (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u)) >> kDropped;
    } else {  // The sum is rounded to a whole number of the subnormals' unit.
      rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kUnits)) - kUnits;
    }
    if (rounded > kMost) rounded = kMost;
    bits = magnitude > 0x7f800000u ? uint8_t{0x7f} : static_cast<uint8_t>(((raw >> 24) & 0x80u) | rounded);
  }
  explicit operator float() const {
    const uint32_t magnitude = bits & 0x7fu, sign = static_cast<uint32_t>(bits & 0x80u) << 24;
    if (magnitude > kMost) {  // E5M2 has an infinity behind its largest number.
      return std::bit_cast<float>(sign | (kFractionBits == 2 && magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u));
    }
    return std::bit_cast<float>(sign | magnitude << kDropped) * std::bit_cast<float>((254u - kBias) << 23);
  }

 private:
  static constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  static constexpr int kDropped = 23 - kFractionBits;
  static constexpr uint32_t kRebias = (127u - kBias) << 23;
  static constexpr uint32_t kLeastNormal = (128u - kBias) << 23;
  static constexpr uint32_t kUnits = (151u - kBias - kFractionBits) << 23;
};
using F8E4M3 = F8<4, 3, 0x7e>;
using F8E5M2 = F8<5, 2, 0x7b>;
static_assert(sizeof(F8E4M3) == 1 && sizeof(F8E5M2) == 1);

constexpr bool is_fp8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<F8E4M3> {
  static constexpr DType value = DType::kF8E4M3;
};
template <>
struct DTypeOf<F8E5M2> {
  static constexpr DType value = DType::kF8E5M2;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace telar::backend
