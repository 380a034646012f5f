#include "worker/backend/cpu/gloo_reduce.h"

#include <algorithm>
#include <type_traits>

namespace telar::backend::cpu {
namespace {

// Elements taken through all parts at a time; the accumulator stays in the first-level cache.
constexpr int64_t kBlock = 2048;

template <typename Wide>
Wide combine(ReduceOp op, Wide a, Wide b) {
  if (op == ReduceOp::kSum) {
    if constexpr (std::is_integral_v<Wide>) {
      return static_cast<Wide>(static_cast<std::make_unsigned_t<Wide>>(a) + static_cast<std::make_unsigned_t<Wide>>(b));
    } else {
      return a + b;
    }
  }
  if constexpr (std::is_integral_v<Wide>) {
    return std::max(a, b);
  } else {
    return (b > a || b != b) ? b : a;  // Keeps a NaN of either side: b > NaN is false.
  }
}

template <ReduceOp kOp, typename T, typename Wide>
void reduce_typed(std::span<const std::byte* const> parts, std::byte* out, int64_t elements) {
  Wide sum[kBlock];
  T* const y = reinterpret_cast<T*>(out);
  for (int64_t first = 0; first < elements; first += kBlock) {
    const int64_t count = std::min(kBlock, elements - first);
    const T* x = reinterpret_cast<const T*>(parts[0]) + first;
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<Wide>(x[i]);
    for (size_t part = 1; part < parts.size(); ++part) {
      x = reinterpret_cast<const T*>(parts[part]) + first;
      for (int64_t i = 0; i < count; ++i) sum[i] = combine(kOp, sum[i], static_cast<Wide>(x[i]));
    }
    for (int64_t i = 0; i < count; ++i) y[first + i] = static_cast<T>(sum[i]);
  }
}

template <typename T, typename Wide>
void reduce_op(ReduceOp op, std::span<const std::byte* const> parts, std::byte* out, int64_t elements) {
  if (op == ReduceOp::kSum) {
    reduce_typed<ReduceOp::kSum, T, Wide>(parts, out, elements);
  } else {
    reduce_typed<ReduceOp::kMax, T, Wide>(parts, out, elements);
  }
}

}  // namespace

void reduce_parts(ReduceOp op, DType dtype, std::span<const std::byte* const> parts, std::byte* out, int64_t elements) {
  switch (dtype) {
    case DType::kF32:
      return reduce_op<float, float>(op, parts, out, elements);
    case DType::kBF16:
      return reduce_op<Bf16, float>(op, parts, out, elements);
    case DType::kF16:
      return reduce_op<F16, float>(op, parts, out, elements);
    case DType::kI32:
      return reduce_op<int32_t, int32_t>(op, parts, out, elements);
    default:
      break;  // check_reducible() said no.
  }
}

}  // namespace telar::backend::cpu
