#include "worker/convert/values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

namespace telar::convert {
namespace {

using backend::DType;

template <typename T>
void widen_as(const std::byte* in, std::span<float> out) {
  constexpr size_t kBlock = 1024;
  std::array<T, kBlock> block;
  for (size_t at = 0; at < out.size(); at += kBlock) {
    const size_t count = std::min(kBlock, out.size() - at);
    std::memcpy(block.data(), in + at * sizeof(T), count * sizeof(T));
    for (size_t i = 0; i < count; ++i) out[at + i] = static_cast<float>(block[i]);
  }
}

template <typename T>
bool narrow_as(std::span<const float> in, std::byte* out) {
  constexpr size_t kBlock = 1024;
  std::array<T, kBlock> block;
  uint32_t lost = 0;
  const T infinity(INFINITY);
  for (size_t at = 0; at < in.size(); at += kBlock) {
    const size_t count = std::min(kBlock, in.size() - at);
    for (size_t i = 0; i < count; ++i) {
      block[i] = T(in[at + i]);
      const uint32_t magnitude = std::bit_cast<uint32_t>(in[at + i]) & 0x7fffffffu;
      lost |= static_cast<uint32_t>((block[i].bits & 0x7fffu) == infinity.bits && magnitude < 0x7f800000u);
    }
    std::memcpy(out + at * sizeof(T), block.data(), count * sizeof(T));
  }
  return lost == 0;
}

}  // namespace

std::optional<DType> weight_dtype(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  return std::nullopt;
}

void widen(std::span<const std::byte> in, DType dtype, std::span<float> out) {
  if (dtype == DType::kBF16) return widen_as<backend::Bf16>(in.data(), out);
  if (dtype == DType::kF16) return widen_as<backend::F16>(in.data(), out);
  std::memcpy(out.data(), in.data(), out.size_bytes());
}

bool narrow(std::span<const float> in, DType dtype, std::span<std::byte> out) {
  if (dtype == DType::kBF16) return narrow_as<backend::Bf16>(in, out.data());
  if (dtype == DType::kF16) return narrow_as<backend::F16>(in, out.data());
  std::memcpy(out.data(), in.data(), in.size_bytes());
  return true;
}

// By tiles, each of which passes through a small one: so neither side is walked with a stride that throws its cache
// lines out before they are used up.
void transpose(std::span<const float> in, int64_t rows, int64_t columns, float* out, int64_t out_stride) {
  constexpr int64_t kTile = 32;
  float tile[kTile][kTile + 1];
  for (int64_t row = 0; row < rows; row += kTile) {
    const int64_t height = std::min(kTile, rows - row);
    for (int64_t column = 0; column < columns; column += kTile) {
      const int64_t width = std::min(kTile, columns - column);
      for (int64_t r = 0; r < height; ++r) {
        const float* from = in.data() + (row + r) * columns + column;
        for (int64_t c = 0; c < width; ++c) tile[c][r] = from[c];
      }
      for (int64_t c = 0; c < width; ++c) {
        std::memcpy(out + (column + c) * out_stride + row, tile[c], static_cast<size_t>(height) * sizeof(float));
      }
    }
  }
}

}  // namespace telar::convert
