#pragma once

#include "tests/reference/values.h"

namespace telar::reference {

// positions: empty = none. table: ids from `first` on; others are zeros.
inline Values embedding(const std::vector<int32_t>& ids, const Values& table, const Values& positions, int64_t sequence,
                        int64_t width, int64_t first = 0, const std::vector<int32_t>& starts = {}) {
  Values y(ids.size() * width);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t c = 0; c < width; ++c) {
      const int64_t at = (ids[t] - first) * width + c;
      if (at >= 0 && at < static_cast<int64_t>(table.size())) y[t * width + c] = table[at];
      const int64_t position = static_cast<int64_t>(t) % sequence - (starts.empty() ? 0 : starts[t]);
      if (!positions.empty()) y[t * width + c] += positions[position * width + c];
    }
  }
  return y;
}

// Adds to dtable, of ids from `first` on, and, unless empty, dpositions.
inline void embedding_backward(const std::vector<int32_t>& ids, const Values& dy, int64_t sequence, int64_t width,
                               Values& dtable, Values& dpositions, int64_t first = 0,
                               const std::vector<int32_t>& starts = {}) {
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t c = 0; c < width; ++c) {
      const int64_t at = (ids[t] - first) * width + c;
      if (at >= 0 && at < static_cast<int64_t>(dtable.size())) dtable[at] += dy[t * width + c];
      const int64_t position = static_cast<int64_t>(t) % sequence - (starts.empty() ? 0 : starts[t]);
      if (!dpositions.empty()) dpositions[position * width + c] += dy[t * width + c];
    }
  }
}

}  // namespace telar::reference
