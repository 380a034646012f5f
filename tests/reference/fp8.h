// 8-bit floats by definition: a table of their values, and the nearest entry.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/reference/values.h"

namespace telar::reference {

struct Fp8Format {
  int exponent_bits, fraction_bits;
  bool has_infinity;  // Then all of the highest exponent is infinity and NaN, else only the highest code is NaN.
};
inline constexpr Fp8Format kE4M3{4, 3, false}, kE5M2{5, 2, true};

// The value of codes 0 to 0x7f: (-1)^0 2^(e - bias) 1.f, or 2^(1 - bias) 0.f where e is 0.
inline double fp8_value(const Fp8Format& format, int code) {
  const int fractions = 1 << format.fraction_bits, bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = code / fractions, fraction = code % fractions;
  const bool is_highest = exponent == (1 << format.exponent_bits) - 1;
  if (format.has_infinity && is_highest) {
    return fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (is_highest && fraction == fractions - 1) return std::nan("");
  const double significand = static_cast<double>(fraction) / fractions + (exponent > 0 ? 1 : 0);
  return std::ldexp(significand, std::max(exponent, 1) - bias);
}

inline int fp8_most(const Fp8Format& format) { return format.has_infinity ? 0x7b : 0x7e; }

// The code of the finite number nearest to x, of two the even one; 0x7f of a NaN.
inline uint8_t fp8_code(const Fp8Format& format, double x) {
  if (std::isnan(x)) return 0x7f;
  const double magnitude = std::abs(x);
  int code = 0;
  while (code < fp8_most(format) && fp8_value(format, code + 1) <= magnitude) ++code;
  if (code < fp8_most(format)) {
    const double down = magnitude - fp8_value(format, code), up = fp8_value(format, code + 1) - magnitude;
    if (up < down || (up == down && code % 2 == 1)) ++code;
  }
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

inline double fp8_scale(const Fp8Format& format, double amax) {
  if (!std::isfinite(amax)) return std::nan("");
  if (amax == 0) return 1;
  double scale = 0x1p126;
  while (amax * scale > fp8_value(format, fp8_most(format))) scale /= 2;
  return scale;
}

inline double amax(const Values& x) {
  double greatest = 0;
  for (const double value : x) {
    if (std::isnan(value)) return value;
    greatest = std::max(greatest, std::abs(value));
  }
  return greatest;
}

// rows[T, C] and columns[C, T] of x[T, C].
struct Quantized {
  std::vector<uint8_t> rows, columns;
  double inverse_scale = 0;
};
inline Quantized quantize(const Fp8Format& format, const Values& x, double amax, int64_t height, int64_t width) {
  const double scale = fp8_scale(format, amax);
  Quantized q{std::vector<uint8_t>(x.size()), std::vector<uint8_t>(x.size()), 1 / scale};
  for (int64_t t = 0; t < height; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      const double value = x[t * width + c];
      const uint8_t code = fp8_code(format, std::isinf(value) ? std::nan("") : value * scale);
      q.rows[t * width + c] = code;
      q.columns[c * height + t] = code;
    }
  }
  return q;
}

// In blocks of `high` rows and `wide` columns from the matrix's corner on: codes and inverse scales by element.
struct QuantizedBlocks {
  std::vector<uint8_t> codes;
  Values inverse_scales;
};
inline QuantizedBlocks quantize_blocks(const Fp8Format& format, const Values& x, int64_t height, int64_t width,
                                       int64_t high, int64_t wide) {
  QuantizedBlocks q{std::vector<uint8_t>(x.size()), Values(x.size())};
  for (int64_t t = 0; t < height; t += high) {
    for (int64_t c = 0; c < width; c += wide) {
      std::vector<int64_t> elements;
      Values block;
      for (int64_t i = t; i < std::min(height, t + high); ++i) {
        for (int64_t j = c; j < std::min(width, c + wide); ++j) elements.push_back(i * width + j);
      }
      for (const int64_t at : elements) block.push_back(x[at]);
      const double greatest = amax(block);
      const auto own = quantize(format, block, greatest, static_cast<int64_t>(block.size()), 1);
      for (size_t i = 0; i < elements.size(); ++i) {
        q.codes[elements[i]] = own.rows[i];
        q.inverse_scales[elements[i]] = own.inverse_scale;
      }
    }
  }
  return q;
}

}  // namespace telar::reference
