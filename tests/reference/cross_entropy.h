#pragma once

#include <algorithm>
#include <cmath>

#include "tests/reference/values.h"

namespace telar::reference {

struct CrossEntropy {
  double loss = 0;
  Values dlogits;  // As logits, padding and rows without a target zero.
};

inline CrossEntropy cross_entropy(const std::vector<int32_t>& targets, double count, int64_t vocab, int64_t pitch,
                                  const Values& logits) {
  CrossEntropy out{0, Values(logits.size(), 0.0)};
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    const double* row = &logits[t * pitch];
    const double maximum = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - maximum);
    out.loss += (maximum + std::log(sum) - row[targets[t]]) / count;
    for (int64_t v = 0; v < vocab; ++v) {
      out.dlogits[t * pitch + v] = (std::exp(row[v] - maximum) / sum - (v == targets[t] ? 1 : 0)) / count;
    }
  }
  return out;
}

// Of columns [first, first + count) of logits [targets, pitch]: per token their maximum, the sum of e^(logit -
// maximum), and the target's logit, 0 if that is another column. [3, targets].
inline Values softmax_parts(const std::vector<int32_t>& targets, int64_t first, int64_t count, int64_t pitch,
                            const Values& logits) {
  const size_t tokens = targets.size();
  Values parts(3 * tokens, 0.0);
  for (size_t t = 0; t < tokens; ++t) {
    const double* row = &logits[t * pitch];
    double& maximum = parts[t] = -HUGE_VAL;
    for (int64_t v = first; v < first + count; ++v) maximum = std::max(maximum, row[v]);
    for (int64_t v = first; v < first + count; ++v) parts[tokens + t] += std::exp(row[v] - maximum);
    if (targets[t] >= first && targets[t] < first + count) parts[2 * tokens + t] = row[targets[t]];
  }
  return parts;
}

}  // namespace telar::reference
