#include <algorithm>

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

template <typename W, typename T>
TELAR_SIMD void embed_row(const W* word, const W* position, T* y, int64_t width) {
  if (position == nullptr) {
    for (int64_t c = 0; c < width; ++c) store(load(word[c]), y[c]);
  } else {
    for (int64_t c = 0; c < width; ++c) store(load(word[c]) + load(position[c]), y[c]);
  }
}

}  // namespace

absl::Status CpuKernels::embedding(Stream&, In ids, In table, In positions, int64_t sequence, Out y) {
  if (absl::Status status = check_embedding(ids, table, positions, sequence, y); !status.ok()) return status;
  if (absl::Status status = check_ids("embedding", ids, table.rows()); !status.ok()) return status;
  const int64_t width = table.cols();
  const int32_t* id = ids.as<int32_t>();
  with_type(table.dtype, [&](auto weight) {
    using W = decltype(weight);
    with_type(y.dtype, [&](auto type) {
      using T = decltype(type);
      const W* at = positions.absent() ? nullptr : positions.as<W>();
      parallel_pieces(ids.elements(), kRowPiece, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
          embed_row(table.as<W>() + id[t] * width, at == nullptr ? nullptr : at + t % sequence * width,
                    y.as<T>() + t * width, width);
        }
      });
    });
  });
  return absl::OkStatus();
}

// Threads share the columns; each goes through the tokens in order, so equal ids add up in a fixed order.
absl::Status CpuKernels::embedding_backward(Stream&, In ids, In dy, int64_t sequence, InOut dtable, InOut dpositions) {
  if (absl::Status status = check_embedding_backward(ids, dy, sequence, dtable, dpositions); !status.ok()) {
    return status;
  }
  if (absl::Status status = check_ids("embedding_backward", ids, dtable.rows()); !status.ok()) return status;
  const int64_t width = dy.cols();
  const int32_t* id = ids.as<int32_t>();
  with_type(dy.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_pieces(width, kColumnPiece, [&](int64_t first, int64_t last) {
      for (int64_t t = 0; t < ids.elements(); ++t) {
        const T* row = dy.as<T>() + t * width + first;
        accumulate_row(row, dtable.as<float>() + id[t] * width + first, last - first);
        if (!dpositions.absent()) {
          accumulate_row(row, dpositions.as<float>() + t % sequence * width + first, last - first);
        }
      }
    });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
