#pragma once

#include "tests/reference/values.h"

namespace telar::reference {

// positions: empty = none.
inline Values embedding(const std::vector<int32_t>& ids, const Values& table, const Values& positions, int64_t sequence,
                        int64_t width) {
  Values y(ids.size() * width);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t c = 0; c < width; ++c) {
      y[t * width + c] = table[ids[t] * width + c];
      if (!positions.empty()) y[t * width + c] += positions[static_cast<int64_t>(t) % sequence * width + c];
    }
  }
  return y;
}

// Adds to dtable and, unless empty, dpositions.
inline void embedding_backward(const std::vector<int32_t>& ids, const Values& dy, int64_t sequence, int64_t width,
                               Values& dtable, Values& dpositions) {
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t c = 0; c < width; ++c) {
      dtable[ids[t] * width + c] += dy[t * width + c];
      if (!dpositions.empty()) dpositions[static_cast<int64_t>(t) % sequence * width + c] += dy[t * width + c];
    }
  }
}

}  // namespace telar::reference
