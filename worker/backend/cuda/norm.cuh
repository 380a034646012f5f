// Launches the kernels of norm_kernels.cuh for the types, alignment and width at hand.
#pragma once

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/norm_kernels.cuh"
#include "worker/backend/cuda/workspace.h"

namespace telar::backend::cuda {

// Calls visit(std::integral_constant) with the team for rows of `width` columns.
template <typename Visit>
void with_team(int64_t width, const Visit& visit) {
  if (width <= 32 * kRowValues) {
    visit(std::integral_constant<int, 32>());
  } else if (width <= 128 * kRowValues) {
    visit(std::integral_constant<int, 128>());
  } else {
    visit(std::integral_constant<int, 512>());
  }
}

inline absl::Status check_norm_width(const char* op, int64_t width) {
  if (width <= kWidestNorm) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(op, ": got rows of ", width, " columns, the CUDA kernel takes up to ", kWidestNorm));
}

// The arguments were checked. `mean` is absent unless kCentred.
template <bool kCentred>
absl::Status launch_norm(const char* op, cudaStream_t stream, In residual, In delta, In weight, In bias, float epsilon,
                         Out sum, Out y, Out mean, Out rstd) {
  const int64_t rows = residual.rows(), width = residual.cols();
  if (absl::Status status = check_norm_width(op, width); !status.ok()) return status;
  with_types(residual.dtype, weight.dtype, [&](auto type, auto weight_type) {
    using T = decltype(type);
    using W = decltype(weight_type);
    constexpr int kN = kPackSize<T>;
    const T *r = source<T>(residual), *d = source<T>(delta);
    const W *w = source<W>(weight), *b = source<W>(bias);
    T *to_sum = target<T>(sum), *to_y = target<T>(y);
    const bool fits = width % kN == 0 && fits_packs<kN>(r) && fits_packs<kN>(d) && fits_packs<kN>(w) &&
                      fits_packs<kN>(b) && fits_packs<kN>(to_sum) && fits_packs<kN>(to_y);
    with_bool(fits, [&](auto vector) {
      with_team(width, [&](auto team) {
        constexpr int kThreads = norm_threads(team.value), kTeams = kThreads / team.value;
        norm_kernel<kCentred, team.value, vector.value>
            <<<static_cast<unsigned>(ceil_div(rows, kTeams)), kThreads, 0, stream>>>(
                r, d, w, b, epsilon, rows, static_cast<int>(width), to_sum, to_y, target<float>(mean),
                target<float>(rstd));
      });
    });
  });
  return to_status(cudaGetLastError(), op);
}

template <bool kCentred>
absl::Status launch_norm_backward(const char* op, cudaStream_t stream, Workspaces& workspaces, In dy, In x, In weight,
                                  In mean, In rstd, InOut dx, InOut dweight, InOut dbias) {
  constexpr int kSums = kCentred ? 2 : 1;
  const int64_t rows = x.rows(), width = x.cols();
  if (absl::Status status = check_norm_width(op, width); !status.ok()) return status;
  int64_t blocks = 0;
  with_team(width, [&](auto team) {
    constexpr int kTeams = norm_threads(team.value) / team.value;
    blocks = std::min<int64_t>(ceil_div(rows, kTeams), team.value == 512 ? 132 : 2 * 132);  // An H200 has 132 SMs.
  });
  const auto memory = workspaces.get(op, stream, static_cast<size_t>(blocks * kSums * width) * sizeof(float));
  if (!memory.ok()) return memory.status();
  float* partials = reinterpret_cast<float*>(*memory);
  with_types(x.dtype, weight.dtype, [&](auto type, auto weight_type) {
    using T = decltype(type);
    using W = decltype(weight_type);
    constexpr int kN = kPackSize<T>;
    const T *d = source<T>(dy), *v = source<T>(x);
    const W* w = source<W>(weight);
    T* to = target<T>(dx);
    const bool fits =
        width % kN == 0 && fits_packs<kN>(d) && fits_packs<kN>(v) && fits_packs<kN>(w) && fits_packs<kN>(to);
    with_bool(fits, [&](auto vector) {
      with_team(width, [&](auto team) {
        norm_backward_kernel<kCentred, team.value, vector.value>
            <<<static_cast<unsigned>(blocks), norm_threads(team.value), 0, stream>>>(
                d, v, w, source<float>(mean), source<float>(rstd), rows, static_cast<int>(width), to, partials);
      });
    });
  });
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess)
    error = add_partials(stream, partials, blocks, width, kSums * width, target<float>(dweight));
  if (error == cudaSuccess && kCentred && !dbias.absent()) {
    error = add_partials(stream, partials + width, blocks, width, kSums * width, target<float>(dbias));
  }
  return to_status(error, op);
}

}  // namespace telar::backend::cuda
