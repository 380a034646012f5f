// How tests cut a vocabulary.
#pragma once

#include <algorithm>
#include <vector>

#include "worker/backend/kernels.h"

namespace telar::backend::testing {

// Of ceil(vocab / ranks) ids each while there are any: the last ones may have fewer, or none.
inline std::vector<VocabSlice> slices_of(int64_t vocab, int64_t ranks) {
  const int64_t each = (vocab + ranks - 1) / ranks;
  std::vector<VocabSlice> slices;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t first = std::min(vocab, rank * each);
    slices.push_back({first, std::min(each, vocab - first), vocab});
  }
  return slices;
}

}  // namespace telar::backend::testing
