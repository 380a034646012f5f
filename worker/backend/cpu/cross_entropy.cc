#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/simd.h"

namespace telar::backend::cpu {

namespace {

constexpr int64_t kLossRows = 4;  // Rows are long: a vocabulary each.

absl::Status check_targets(const char* op, const In& targets, int64_t vocab) {
  const int32_t* target = targets.as<int32_t>();
  for (int64_t t = 0; t < targets.elements(); ++t) {
    if (target[t] >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": targets: got ", target[t], " at token ", t, ", wanted below vocab = ", vocab));
    }
  }
  return absl::OkStatus();
}

// Widens a row to `values` and returns its maximum.
template <typename T>
TELAR_SIMD float widen_row(const T* __restrict logits, float* __restrict values, int64_t vocab) {
  int32_t largest = INT32_MIN;
  for (int64_t v = 0; v < vocab; ++v) {
    values[v] = load(logits[v]);
    const int32_t key = to_ordered(values[v]);
    largest = key > largest ? key : largest;
  }
  return from_ordered(largest);
}

// values = e^(values - maximum); returns their sum.
TELAR_SIMD float exponentials(float* values, float maximum, int64_t vocab) {
  for (int64_t v = 0; v < vocab; ++v) values[v] = fast_exp(values[v] - maximum);
  return sum_of(vocab, [=](int64_t v) { return values[v]; });
}

template <typename T>
TELAR_SIMD void scale_row(const float* __restrict values, float scale, T* __restrict logits, int64_t vocab) {
  for (int64_t v = 0; v < vocab; ++v) store(values[v] * scale, logits[v]);
}

// -log softmax(logits)[target]; leaves e^(logit - maximum) in `values` and their sum in `sum`.
template <typename T>
double row_loss(const T* logits, int64_t vocab, int32_t target, float* values, float& sum) {
  const float maximum = widen_row(logits, values, vocab);
  const double above = static_cast<double>(maximum) - values[target];
  sum = exponentials(values, maximum, vocab);
  return std::log(static_cast<double>(sum)) + above;
}

// logits become e^(logits - maximum) scale.
template <typename T>
TELAR_SIMD void gradient_row(T* logits, float maximum, float scale, int64_t n) {
  for (int64_t v = 0; v < n; ++v) store(fast_exp(load(logits[v]) - maximum) * scale, logits[v]);
}

// Softmax of one token's logits, as far as the loss needs it: their maximum, the sum of e^(logit - maximum), and the
// target's logit.
struct Softmax {
  double maximum = -HUGE_VAL, sum = 0, target = 0;
  double loss() const { return std::log(sum) + (maximum - target); }
};

// Of parts of all slices, in their order.
Softmax combine_parts(const In& parts, int64_t tokens, int64_t t) {
  const int64_t slices = parts.elements() / (3 * tokens);
  const auto part = [&](int64_t slice, int64_t which) -> double {
    return parts.as<float>()[(slice * 3 + which) * tokens + t];
  };
  Softmax all;
  for (int64_t i = 0; i < slices; ++i) all.maximum = std::max(all.maximum, part(i, 0));
  for (int64_t i = 0; i < slices; ++i) {
    all.sum += part(i, 1) * std::exp(part(i, 0) - all.maximum);
    all.target += part(i, 2);
  }
  return all;
}

// loss += sum of losses / count; handle_row(t, losses[t]) fills in a row's part. The sum is serial, in f64.
template <typename HandleRow>
void sum_losses(int64_t rows, double inverse_count, const InOut& loss, const HandleRow& handle_row) {
  double* losses = scratch<double>(Scratch::kPartials, rows);
  parallel_pieces(rows, kLossRows, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      losses[t] = 0;
      handle_row(t, losses[t]);
    }
  });
  double sum = 0;
  for (int64_t t = 0; t < rows; ++t) sum += losses[t];
  loss.as<float>()[0] += static_cast<float>(sum * inverse_count);
}

// No target at all: nothing to divide, and every row is zero.
double inverse_of(const In& count) {
  const float n = count.as<float>()[0];
  return n > 0 ? 1.0 / n : 0.0;
}

}  // namespace

absl::Status CpuKernels::count_valid(Stream&, In targets, InOut count) {
  if (absl::Status status = check_count_valid(targets, count); !status.ok()) return status;
  const int32_t* target = targets.as<int32_t>();
  int64_t valid = 0;
  for (int64_t t = 0; t < targets.elements(); ++t) valid += target[t] >= 0;
  count.as<float>()[0] += static_cast<float>(valid);
  return absl::OkStatus();
}

absl::Status CpuKernels::cross_entropy(Stream&, In targets, In count, In loss_scale, int64_t vocab, InOut logits,
                                       InOut loss) {
  if (absl::Status s = check_cross_entropy("cross_entropy", targets, count, loss_scale, vocab, logits, loss); !s.ok()) {
    return s;
  }
  if (absl::Status s = check_targets("cross_entropy", targets, vocab); !s.ok()) return s;
  const double inverse_count = inverse_of(count);
  const double slope = loss_scale.absent() ? inverse_count : inverse_count * loss_scale.as<float>()[0];
  const int64_t pitch = logits.cols();
  with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    sum_losses(targets.elements(), inverse_count, loss, [&](int64_t t, double& row) {
      T* at = logits.as<T>() + t * pitch;
      const int32_t target = targets.as<int32_t>()[t];
      if (target < 0) {
        std::fill_n(at, pitch, T{});
        return;
      }
      float* values = scratch(Scratch::kRows, vocab);
      float sum = 0;
      row = row_loss(at, vocab, target, values, sum);
      scale_row(values, static_cast<float>(slope / sum), at, vocab);
      store(static_cast<float>((values[target] / static_cast<double>(sum) - 1.0) * slope), at[target]);
      std::fill_n(at + vocab, pitch - vocab, T{});
    });
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::cross_entropy_loss(Stream&, In targets, In count, int64_t vocab, In logits, InOut loss) {
  if (absl::Status s = check_cross_entropy("cross_entropy_loss", targets, count, In(), vocab, logits, loss); !s.ok()) {
    return s;
  }
  if (absl::Status s = check_targets("cross_entropy_loss", targets, vocab); !s.ok()) return s;
  const int64_t pitch = logits.cols();
  with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    sum_losses(targets.elements(), inverse_of(count), loss, [&](int64_t t, double& row) {
      const int32_t target = targets.as<int32_t>()[t];
      if (target < 0) return;
      float sum = 0;
      row = row_loss(logits.as<T>() + t * pitch, vocab, target, scratch(Scratch::kRows, vocab), sum);
    });
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::softmax_parts(Stream&, In targets, const VocabSlice& slice, In logits, Out parts) {
  if (absl::Status s = check_softmax_parts(targets, slice, logits, parts); !s.ok()) return s;
  if (absl::Status s = check_targets("softmax_parts", targets, slice.vocab); !s.ok()) return s;
  const int64_t tokens = targets.elements(), pitch = logits.cols();
  with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(tokens, kLossRows, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const T* at = logits.as<T>() + t * pitch;
        float maximum = -HUGE_VALF, sum = 0;
        if (slice.count > 0) {
          float* values = scratch(Scratch::kRows, slice.count);
          maximum = widen_row(at, values, slice.count);
          if (maximum != -HUGE_VALF) sum = exponentials(values, maximum, slice.count);
        }
        const int32_t target = targets.as<int32_t>()[t];
        const int64_t column = target - slice.first;
        const bool here = target >= 0 && column >= 0 && column < slice.count;
        float* part = parts.as<float>() + t;
        part[0] = maximum;
        part[tokens] = sum;
        part[2 * tokens] = here ? load(at[column]) : 0.0f;
      }
    });
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::cross_entropy_parts(Stream&, In targets, In count, In loss_scale, const VocabSlice& slice,
                                             In parts, InOut logits, InOut loss) {
  if (absl::Status s = check_cross_entropy_parts(targets, count, loss_scale, slice, parts, logits, loss); !s.ok()) {
    return s;
  }
  if (absl::Status s = check_targets("cross_entropy_parts", targets, slice.vocab); !s.ok()) return s;
  const double inverse_count = inverse_of(count);
  const double slope = loss_scale.absent() ? inverse_count : inverse_count * loss_scale.as<float>()[0];
  const int64_t tokens = targets.elements(), pitch = logits.cols();
  with_type(logits.dtype, [&](auto type) {
    using T = decltype(type);
    sum_losses(tokens, inverse_count, loss, [&](int64_t t, double& row) {
      T* at = logits.as<T>() + t * pitch;
      const int32_t target = targets.as<int32_t>()[t];
      if (target < 0) {
        std::fill_n(at, pitch, T{});
        return;
      }
      const Softmax all = combine_parts(parts, tokens, t);
      row = all.loss();
      gradient_row(at, static_cast<float>(all.maximum), static_cast<float>(slope / all.sum), slice.count);
      std::fill_n(at + slice.count, pitch - slice.count, T{});
      const int64_t column = target - slice.first;
      if (column >= 0 && column < slice.count) {
        const double probability = std::exp(all.target - all.maximum) / all.sum;
        store(static_cast<float>((probability - 1.0) * slope), at[column]);
      }
    });
  });
  return absl::OkStatus();
}

absl::Status CpuKernels::cross_entropy_loss_parts(Stream&, In targets, In count, In parts, InOut loss) {
  if (absl::Status s = check_cross_entropy_loss_parts(targets, count, parts, loss); !s.ok()) return s;
  const int64_t tokens = targets.elements();
  sum_losses(tokens, inverse_of(count), loss, [&](int64_t t, double& row) {
    if (targets.as<int32_t>()[t] >= 0) row = combine_parts(parts, tokens, t).loss();
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
