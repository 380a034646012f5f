// Random borders of documents in sequences.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace telar::backend::testing {

// Documents of around `length` tokens; of each token, where in its sequence its document starts.
inline std::vector<int32_t> random_starts(std::mt19937_64& random, int64_t batch, int64_t sequence, int64_t length) {
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < batch; ++b) {
    int32_t start = 0;
    for (int64_t t = 0; t < sequence; ++t) {
      if (t > 0 && static_cast<int64_t>(random() % static_cast<uint64_t>(length)) == 0) start = static_cast<int32_t>(t);
      starts.push_back(start);
    }
  }
  return starts;
}

}  // namespace telar::backend::testing
