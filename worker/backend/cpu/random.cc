#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/philox.h"
#include "worker/backend/cpu/simd.h"

namespace telar::backend::cpu {

namespace {

// Two standard normals of two random words, by Box & Muller 1958. In double, so that rounding to float hides how the
// machine's log and cosine round.
std::array<double, 2> box_muller(uint32_t a, uint32_t b) {
  constexpr double kUnit = 1.0 / 4294967296.0;
  const double radius = std::sqrt(-2.0 * std::log((a + 1.0) * kUnit));  // (0, 1], so the logarithm is finite.
  const double angle = 2.0 * std::numbers::pi * (b * kUnit);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Elements 4 block to 4 block + 3 of the tensor.
std::array<double, 4> normals(const RandomKey& key, uint64_t block) {
  const PhiloxCounter words =
      philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.tensor, key.purpose},
             {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  const std::array<double, 2> low = box_muller(words[0], words[1]);
  const std::array<double, 2> high = box_muller(words[2], words[3]);
  return {low[0], low[1], high[0], high[1]};
}

}  // namespace

absl::Status CpuKernels::random_normal(Stream&, RandomKey key, float stddev, Out x) {
  if (absl::Status status = check_random_normal(key, stddev, x); !status.ok()) return status;
  // As one row, if it is contiguous.
  const uint64_t row = key.row > 0 ? key.row : key.offset + static_cast<uint64_t>(x.elements());
  with_type(x.dtype, [&](auto type) {
    auto* out = x.as<decltype(type)>();
    parallel_pieces(x.elements(), 4096, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last;) {
        const uint64_t index = key.offset + static_cast<uint64_t>(i), column = index % row;
        const uint64_t global = key.first + index / row * key.stride + column;
        const int64_t end = std::min(last, i + static_cast<int64_t>(row - column));
        const std::array<double, 4> values = normals(key, global / 4);
        for (uint64_t lane = global % 4; lane < 4 && i < end; ++lane, ++i) {
          store(static_cast<float>(values[lane] * stddev), out[i]);
        }
      }
    });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
