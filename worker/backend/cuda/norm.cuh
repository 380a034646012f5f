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

// The team for rows of `packs` packs: the smallest that holds them.
inline int team_of(int64_t packs) {
  if (packs <= 32 * kWarpPacks) return 32;
  for (int team : {64, 128, 256}) {
    if (packs <= team * kTeamPacks) return team;
  }
  return kWidestTeam;  // Up to kWidestPacks.
}

// Calls visit(team, packs a thread), both std::integral_constant. Fewer packs than kTeamPacks only where that is worth
// a kernel: T of 2 bytes, as W, in rows of up to 2048. Which thread has which column does not depend on it.
template <bool kVector, typename T, typename W, typename Visit>
void with_team(int64_t width, const Visit& visit) {
  const int64_t packs = ceil_div(width, kPackSize<T>);
  const int team = team_of(packs);
  constexpr std::integral_constant<int, kTeamPacks> kAll;
  if constexpr (kVector && std::is_same_v<T, W> && sizeof(T) == 2) {
    constexpr std::integral_constant<int, 2> kTwo;
    constexpr std::integral_constant<int, 3> kThree;
    if (packs <= 32 * 2) return visit(std::integral_constant<int, 32>(), kTwo);
    if (team == 64 && packs <= 64 * 2) return visit(std::integral_constant<int, 64>(), kTwo);
    if (team == 64 && packs <= 64 * 3) return visit(std::integral_constant<int, 64>(), kThree);
  }
  if (team == 32) return visit(std::integral_constant<int, 32>(), std::integral_constant<int, kWarpPacks>());
  if (team == 64) return visit(std::integral_constant<int, 64>(), kAll);
  if (team == 128) return visit(std::integral_constant<int, 128>(), kAll);
  if (team == 256) return visit(std::integral_constant<int, 256>(), kAll);
  return visit(std::integral_constant<int, kWidestTeam>(), std::integral_constant<int, kWidestPacks<T>>());
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
      with_team<vector.value, T, W>(width, [&](auto team, auto packs) {
        const auto blocks = static_cast<unsigned>(ceil_div(rows, norm_teams(team.value)));
        norm_kernel<kCentred, team.value, packs.value, vector.value><<<blocks, norm_threads(team.value), 0, stream>>>(
            r, d, w, b, epsilon, rows, static_cast<int>(width), to_sum, to_y, target<float>(mean), target<float>(rstd));
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
  const int64_t row_packs = with_type(x.dtype, [&](auto type) { return ceil_div(width, kPackSize<decltype(type)>); });
  const int size = team_of(row_packs);
  const int64_t blocks =
      std::min<int64_t>(ceil_div(rows, norm_teams(size)), 132 * kNormThreads / norm_threads(size));  // An H200 has 132.
  const auto memory = workspaces.get(op, stream, static_cast<size_t>(blocks * kSums * width) * sizeof(float));
  if (!memory.ok()) return memory.status();
  float* partials = reinterpret_cast<float*>(*memory);
  cudaError_t error = cudaSuccess;
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
      with_team<vector.value, T, W>(width, [&](auto team, auto packs) {
        constexpr int kThreads = norm_threads(team.value);
        constexpr size_t kBytes = norm_backward_bytes<team.value, packs.value, vector.value, T>();
        const auto kernel = norm_backward_kernel<kCentred, team.value, packs.value, vector.value, T, W>;
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
        if (error == cudaSuccess && kBytes > 0) {
          error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared);
        }
        if (error != cudaSuccess) return;
        kernel<<<static_cast<unsigned>(blocks), kThreads, kBytes, stream>>>(
            d, v, w, source<float>(mean), source<float>(rstd), rows, static_cast<int>(width), to, partials);
        error = cudaGetLastError();
      });
    });
  });
  if (error == cudaSuccess) {
    float* to_bias = kCentred ? target<float>(dbias) : nullptr;
    error = add_partials(stream, partials, blocks, width, kSums * width, target<float>(dweight), to_bias);
  }
  return to_status(error, op);
}

}  // namespace telar::backend::cuda
