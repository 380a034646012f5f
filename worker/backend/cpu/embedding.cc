#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/backend/check.h"
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/row_sums.h"
#include "worker/backend/cpu/starts.h"

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

// The tokens whose place is in [0, places), by place and then as they stand.
template <typename PlaceOf>
std::vector<int64_t> in_order_of(int64_t tokens, int64_t places, const PlaceOf& place_of) {
  std::vector<int64_t> order;
  for (int64_t t = 0; t < tokens; ++t) {
    if (place_of(t) >= 0 && place_of(t) < places) order.push_back(t);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return place_of(a) < place_of(b); });
  return order;
}

}  // namespace

absl::Status CpuKernels::embedding(Stream&, In ids, const VocabSlice& slice, In table, In positions, In starts,
                                   int64_t sequence, Out y) {
  if (absl::Status status = check_embedding(ids, slice, table, positions, starts, sequence, y); !status.ok())
    return status;
  if (absl::Status status = check_ids("embedding", ids, slice.vocab); !status.ok()) return status;
  if (absl::Status status = check_starts("embedding", starts, sequence); !status.ok()) return status;
  const Starts start(starts);
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
                    at == nullptr ? nullptr : at + start.position(t, sequence) * width, y.as<T>() + t * width, width);
        }
      });
    });
  });
  return absl::OkStatus();
}

// Threads share the columns. Rows that go to one place are summed in the order of the tokens and then added as one
// summand, as all gradients are: see sum_rows().
absl::Status CpuKernels::embedding_backward(Stream&, In ids, const VocabSlice& slice, In dy, In starts,
                                            int64_t sequence, InOut dtable, InOut dpositions) {
  if (absl::Status status = check_embedding_backward(ids, slice, dy, starts, sequence, dtable, dpositions);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = check_ids("embedding_backward", ids, slice.vocab); !status.ok()) return status;
  if (absl::Status status = check_starts("embedding_backward", starts, sequence); !status.ok()) return status;
  const int64_t width = dy.cols(), tokens = ids.elements();
  const int32_t* id = ids.as<int32_t>();
  const Starts start(starts);
  const auto word_of = [&](int64_t t) { return id[t] - slice.first; };
  const auto position_of = [&](int64_t t) { return start.position(t, sequence); };
  const std::vector<int64_t> by_id = in_order_of(tokens, slice.count, word_of);
  const std::vector<int64_t> by_position = in_order_of(dpositions.absent() ? 0 : tokens, sequence, position_of);
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(width, kColumnPiece, [&](int64_t first, int64_t last) {
      float sum[kColumnPiece];
      const int64_t n = last - first;
      const auto row = [&](int64_t t) { return dy.as<T>() + t * width + first; };
      const auto add_rows = [&](const std::vector<int64_t>& order, const auto& place_of, const InOut& to) {
        for (size_t i = 0; i < order.size();) {
          const int64_t place = place_of(order[i]);
          std::fill_n(sum, n, 0.0f);
          for (; i < order.size() && place_of(order[i]) == place; ++i) accumulate_row(row(order[i]), sum, n);
          accumulate(sum, to.as<float>() + place * width + first, n);
        }
      };
      add_rows(by_id, word_of, dtable);
      add_rows(by_position, position_of, dpositions);
    });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
