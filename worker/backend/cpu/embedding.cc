#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/row_sums.h"

namespace telar::backend::cpu {

namespace {

constexpr int64_t kColumnPiece = 128;

absl::Status check_ids(const char* op, const In& ids, int64_t vocab) {
  const int32_t* id = ids.as<int32_t>();
  for (int64_t t = 0; t < ids.elements(); ++t) {
    if (id[t] < 0 || id[t] >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": ids: got ", id[t], " at token ", t, ", wanted 0 to ", vocab - 1));
    }
  }
  return absl::OkStatus();
}

// Either may be null: zeros.
template <typename W, typename T>
TELAR_SIMD void embed_row(const W* word, const W* position, T* y, int64_t width) {
  if (word == nullptr && position == nullptr) {
    std::fill_n(y, width, T{});
  } else if (word == nullptr) {
    for (int64_t c = 0; c < width; ++c) store(load(position[c]), y[c]);
  } else if (position == nullptr) {
    for (int64_t c = 0; c < width; ++c) store(load(word[c]), y[c]);
  } else {
    for (int64_t c = 0; c < width; ++c) store(load(word[c]) + load(position[c]), y[c]);
  }
}

}  // namespace

absl::Status CpuKernels::embedding(Stream&, In ids, const VocabSlice& slice, In table, In positions, int64_t sequence,
                                   Out y) {
  if (absl::Status status = check_embedding(ids, slice, table, positions, sequence, y); !status.ok()) return status;
  if (absl::Status status = check_ids("embedding", ids, slice.vocab); !status.ok()) return status;
  const int64_t width = table.cols();
  const int32_t* id = ids.as<int32_t>();
  with_type(table.dtype, [&](auto weight) {
    using W = decltype(weight);
    with_type(y.dtype, [&](auto type) {
      using T = decltype(type);
      const W* at = positions.absent() ? nullptr : positions.as<W>();
      parallel_pieces(ids.elements(), kRowPiece, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
          const int64_t row = id[t] - slice.first;
          embed_row(row >= 0 && row < slice.count ? table.as<W>() + row * width : nullptr,
                    at == nullptr ? nullptr : at + t % sequence * width, y.as<T>() + t * width, width);
        }
      });
    });
  });
  return absl::OkStatus();
}

// Threads share the columns. Rows that go to one place are summed in the order of the tokens and then added as one
// summand, as all gradients are: see sum_rows().
absl::Status CpuKernels::embedding_backward(Stream&, In ids, const VocabSlice& slice, In dy, int64_t sequence,
                                            InOut dtable, InOut dpositions) {
  if (absl::Status status = check_embedding_backward(ids, slice, dy, sequence, dtable, dpositions); !status.ok()) {
    return status;
  }
  if (absl::Status status = check_ids("embedding_backward", ids, slice.vocab); !status.ok()) return status;
  const int64_t width = dy.cols(), tokens = ids.elements();
  const int32_t* id = ids.as<int32_t>();
  std::vector<int64_t> by_id;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t place = id[t] - slice.first;
    if (place >= 0 && place < slice.count) by_id.push_back(t);
  }
  std::stable_sort(by_id.begin(), by_id.end(), [id](int64_t a, int64_t b) { return id[a] < id[b]; });
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(width, kColumnPiece, [&](int64_t first, int64_t last) {
      float sum[kColumnPiece];
      const int64_t n = last - first;
      const auto row = [&](int64_t t) { return dy.as<T>() + t * width + first; };
      for (size_t i = 0; i < by_id.size();) {
        const int32_t word = id[by_id[i]];
        std::fill_n(sum, n, 0.0f);
        for (; i < by_id.size() && id[by_id[i]] == word; ++i) accumulate_row(row(by_id[i]), sum, n);
        accumulate(sum, dtable.as<float>() + (word - slice.first) * width + first, n);
      }
      for (int64_t p = 0; !dpositions.absent() && p < std::min(sequence, tokens); ++p) {
        std::fill_n(sum, n, 0.0f);
        for (int64_t t = p; t < tokens; t += sequence) accumulate_row(row(t), sum, n);
        accumulate(sum, dpositions.as<float>() + p * width + first, n);
      }
    });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
