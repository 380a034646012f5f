#include "worker/parallel/stages.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace telar::parallel {

std::vector<Stage> given_stages(const std::vector<int>& layers) {
  std::vector<Stage> stages;
  int next = 0;
  for (size_t s = 0; s < layers.size(); ++s) {
    stages.push_back({next, layers[s], s == 0, s + 1 == layers.size()});
    next += layers[s];
  }
  return stages;
}

std::vector<Stage> split_stages(int layers, int stages, const EndWeights& weights) {
  const auto n = static_cast<size_t>(layers), count = static_cast<size_t>(stages);
  const auto weight = [&](size_t stage, size_t held) {
    return static_cast<double>(held) + (stage == 0 ? weights.embedding : 0) + (stage + 1 == count ? weights.head : 0);
  };
  // heaviest[s][l]: of the best split of the first l layers over stages 0..s.
  const double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> heaviest(count, std::vector<double>(n + 1, none));
  for (size_t s = 0; s < count; ++s) {
    for (size_t l = s + 1; l <= n; ++l) {
      for (size_t held = 1; held <= l; ++held) {
        if (s == 0 && held != l) continue;
        const double before = s == 0 ? 0 : heaviest[s - 1][l - held];
        heaviest[s][l] = std::min(heaviest[s][l], std::max(before, weight(s, held)));
      }
    }
  }
  const double bound = heaviest[count - 1][n] + 1e-9;
  std::vector<int> found(count);
  size_t left = n;
  for (size_t s = count; s-- > 0;) {
    size_t held = left;  // The first stage has what the others left.
    while (s > 0 && (weight(s, held) > bound || heaviest[s - 1][left - held] > bound)) --held;
    found[s] = static_cast<int>(held);
    left -= held;
  }
  return given_stages(found);
}

}  // namespace telar::parallel
