#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/simd.h"
#include "worker/backend/cpu/starts.h"

namespace telar::backend::cpu {

namespace {

// (a, b) -> (a cos - b sin, b cos + a sin) for a = row[i], b = row[i + half], every head of the row.
template <typename T>
TELAR_SIMD void rotate_row(T* row, int64_t heads, int64_t half, const float* __restrict cosine,
                           const float* __restrict sine, float sign) {
  for (int64_t head = 0; head < heads; ++head) {
    T* __restrict low = row + head * 2 * half;
    T* __restrict high = low + half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = load(low[i]), b = load(high[i]);
      const float s = sign * sine[i];
      store(a * cosine[i] - b * s, low[i]);
      store(b * cosine[i] + a * s, high[i]);
    }
  }
}

void rotate(const AttentionDims& dims, const In& table, const Starts& starts, const InOut& qkv, float sign) {
  const int64_t half = dims.head_dim / 2;
  const int64_t width = qkv.cols();
  with_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(qkv.rows(), kRowPiece, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const float* angles = table.as<float>() + starts.position(t, dims.sequence) * dims.head_dim;
        rotate_row(qkv.as<T>() + t * width, dims.heads + dims.kv_heads, half, angles, angles + half, sign);
      }
    });
  });
}

}  // namespace

absl::Status CpuKernels::rope(Stream&, const AttentionDims& dims, In table, In starts, InOut qkv) {
  if (absl::Status status = check_rope("rope", dims, table, starts, qkv); !status.ok()) return status;
  if (absl::Status status = check_starts("rope", starts, dims.sequence); !status.ok()) return status;
  rotate(dims, table, Starts(starts), qkv, 1.0f);
  return absl::OkStatus();
}

absl::Status CpuKernels::rope_backward(Stream&, const AttentionDims& dims, In table, In starts, InOut dqkv) {
  if (absl::Status status = check_rope("rope_backward", dims, table, starts, dqkv); !status.ok()) return status;
  if (absl::Status status = check_starts("rope_backward", starts, dims.sequence); !status.ok()) return status;
  rotate(dims, table, Starts(starts), dqkv, -1.0f);
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
