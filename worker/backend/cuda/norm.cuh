// Launches the kernels of norm_kernels.cuh for the types, alignment and width at hand.
#pragma once

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/column_sums.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/greatest.cuh"
#include "worker/backend/cuda/norm_kernels.cuh"
#include "worker/backend/cuda/occupancy.h"
#include "worker/backend/cuda/workspace.h"

namespace telar::backend::cuda {

// How many threads a block has for rows of `packs` packs, `each` of which a thread has.
inline int norm_threads(int64_t packs, int each) { return static_cast<int>(ceil_div(ceil_div(packs, each), 32)) * 32; }

// Calls visit(std::integral_constant) with 1, 2, 4 or 8, the least that so many packs a thread, in blocks of up to
// `threads` threads, or kNormThreads where that is not enough, hold a row.
template <typename T, typename Visit>
auto with_packs(int64_t packs, int threads, const Visit& visit) {
  if (packs <= threads) return visit(std::integral_constant<int, 1>());
  if (packs <= 2 * threads) return visit(std::integral_constant<int, 2>());
  constexpr std::integral_constant<int, 4> kFour;
  if constexpr (sizeof(T) == 4) {
    if (packs > 4 * kNormThreads) return visit(std::integral_constant<int, 8>());
  }
  return visit(kFour);
}
static_assert(kWidestNorm == 4 * kNormThreads * kPackSize<__nv_bfloat16>);
static_assert(kWidestNorm == 8 * kNormThreads * kPackSize<float>);

// Calls visit(whether a warp has a row, packs a thread) for the forward. Which thread has which column does not depend
// on kVector.
template <bool kVector, typename T, typename W, typename Visit>
void with_forward_team(int64_t packs, const Visit& visit) {
  constexpr int kThreads = 256;  // Of a block that has more than one pack a thread, as long as two are enough.
  if (packs > 32 * kWarpPacks) {
    return with_packs<T>(packs, kThreads, [&](auto each) { visit(std::false_type(), each); });
  }
  if constexpr (kVector && std::is_same_v<T, W> && sizeof(T) == 2) {  // Fewer registers, where that is worth a kernel.
    if (packs <= 32 * 2) return visit(std::true_type(), std::integral_constant<int, 2>());
  }
  visit(std::true_type(), std::integral_constant<int, kWarpPacks>());
}

inline absl::Status check_norm_width(const char* op, int64_t width) {
  if (width <= kWidestNorm) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(op, ": got rows of ", width, " columns, the CUDA kernel takes up to ", kWidestNorm));
}

// The arguments were checked. `mean` is absent unless kCentred.
template <bool kCentred>
absl::Status launch_norm(const char* op, cudaStream_t stream, In residual, In delta, In weight, In bias, float epsilon,
                         Out sum, Out y, Out mean, Out rstd, Out amax) {
  const int64_t rows = residual.rows(), width = residual.cols();
  if (absl::Status status = check_norm_width(op, width); !status.ok()) return status;
  if (absl::Status status = to_status(clear_greatest(stream, amax), op); !status.ok()) return status;
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
      const int64_t packs = ceil_div(width, kN);
      with_forward_team<vector.value, T, W>(packs, [&](auto warp, auto each) {
        const auto blocks = static_cast<unsigned>(warp.value ? ceil_div(rows, kRowsOfBlock) : rows);
        const int threads = warp.value ? 32 * kRowsOfBlock : norm_threads(packs, each.value);
        norm_kernel<kCentred, warp.value, each.value, vector.value>
            <<<blocks, threads, 0, stream>>>(r, d, w, b, epsilon, rows, static_cast<int>(width), to_sum, to_y,
                                             target<float>(mean), target<float>(rstd), target<float>(amax));
      });
    });
  });
  return to_status(cudaGetLastError(), op);
}

// As many blocks as the device holds, however the arguments are aligned: how rows are shared out sets the order of
// sums.
template <bool kCentred, int kPacks, typename T, typename W>
cudaError_t norm_backward_blocks(int threads, int* blocks) {
  constexpr size_t kBytes = NormRows<kPacks, true, T>::kThreadBytes;
  const auto kernel = reinterpret_cast<const void*>(norm_backward_kernel<kCentred, kPacks, true, T, W>);
  if (const cudaError_t error = allow_shared(kernel, kBytes * kNormThreads); error != cudaSuccess) return error;
  return resident_blocks(kernel, threads, kBytes * static_cast<size_t>(threads), blocks);
}

template <bool kCentred>
absl::Status launch_norm_backward(const char* op, cudaStream_t stream, Workspaces& workspaces, In dy, In x, In weight,
                                  In mean, In rstd, InOut dx, InOut dweight, InOut dbias) {
  constexpr int kSums = kCentred ? 2 : 1;
  const int64_t rows = x.rows(), width = x.cols();
  if (absl::Status status = check_norm_width(op, width); !status.ok()) return status;
  return with_types(x.dtype, weight.dtype, [&](auto type, auto weight_type) {
    using T = decltype(type);
    using W = decltype(weight_type);
    constexpr int kN = kPackSize<T>;
    const T *d = source<T>(dy), *v = source<T>(x);
    const W* w = source<W>(weight);
    T* to = target<T>(dx);
    const bool fits =
        width % kN == 0 && fits_packs<kN>(d) && fits_packs<kN>(v) && fits_packs<kN>(w) && fits_packs<kN>(to);
    const int64_t packs = ceil_div(width, kN);
    return with_packs<T>(packs, kNormThreads, [&](auto each) {
      const int threads = norm_threads(packs, each.value);
      int most = 0;
      cudaError_t error = norm_backward_blocks<kCentred, each.value, T, W>(threads, &most);
      if (error != cudaSuccess) return to_status(error, op);
      const int64_t blocks = std::min<int64_t>(rows, most);
      const auto memory = workspaces.get(op, stream, static_cast<size_t>(blocks * kSums * width) * sizeof(float));
      if (!memory.ok()) return memory.status();
      float* partials = reinterpret_cast<float*>(*memory);
      with_bool(fits, [&](auto vector) {
        const size_t bytes = NormRows<each.value, vector.value, T>::kThreadBytes * static_cast<size_t>(threads);
        norm_backward_kernel<kCentred, each.value, vector.value>
            <<<static_cast<unsigned>(blocks), threads, bytes, stream>>>(
                d, v, w, source<float>(mean), source<float>(rstd), rows, static_cast<int>(width), to, partials);
      });
      error = cudaGetLastError();
      if (error == cudaSuccess) {
        float* to_bias = kCentred ? target<float>(dbias) : nullptr;
        error = add_partials(stream, partials, blocks, width, kSums * width, target<float>(dweight), to_bias);
      }
      return to_status(error, op);
    });
  });
}

}  // namespace telar::backend::cuda
