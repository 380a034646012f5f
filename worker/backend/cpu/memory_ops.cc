#include <cmath>
#include <cstring>

#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/simd.h"

namespace telar::backend::cpu {

namespace {

template <typename T>
TELAR_SIMD void fill_piece(T value, T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = value;
}

template <typename T>
void fill_all(T value, T* x, int64_t n) {
  parallel_pieces(n, kElementPiece, [=](int64_t first, int64_t last) { fill_piece(value, x + first, last - first); });
}

template <typename From, typename To>
TELAR_SIMD void cast_piece(const From* x, To* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(load(x[i]), y[i]);
}

template <typename T>
TELAR_SIMD void add_piece(const T* a, const T* b, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(load(a[i]) + load(b[i]), y[i]);
}

}  // namespace

absl::Status CpuKernels::fill(Stream&, float value, Out x) {
  if (absl::Status status = check_fill(x); !status.ok()) return status;
  if (x.dtype == DType::kI32) {
    fill_all(static_cast<int32_t>(std::lrint(value)), x.as<int32_t>(), x.elements());
  } else {
    with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      fill_all(T(value), x.as<T>(), x.elements());
    });
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::copy(Stream&, In x, Out y) {
  if (absl::Status status = check_copy(x, y); !status.ok()) return status;
  parallel_pieces(static_cast<int64_t>(x.bytes()), 4 * kElementPiece, [&](int64_t first, int64_t last) {
    std::memcpy(y.data + first, x.data + first, static_cast<size_t>(last - first));
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::cast(Stream& stream, In x, Out y) {
  if (absl::Status status = check_cast(x, y); !status.ok()) return status;
  if (x.dtype == y.dtype) return copy(stream, x, y);
  with_type(x.dtype, [&](auto from) {
    with_type(y.dtype, [&](auto to) {
      const auto* source = x.as<decltype(from)>();
      auto* target = y.as<decltype(to)>();
      parallel_pieces(x.elements(), kElementPiece,
                      [=](int64_t first, int64_t last) { cast_piece(source + first, target + first, last - first); });
    });
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::add(Stream&, In a, In b, Out y) {
  if (absl::Status status = check_add(a, b, y); !status.ok()) return status;
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(a.elements(), kElementPiece, [&](int64_t first, int64_t last) {
      add_piece(a.as<T>() + first, b.as<T>() + first, y.as<T>() + first, last - first);
    });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
