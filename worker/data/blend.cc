#include "worker/data/blend.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace telar::data {

absl::StatusOr<Blend> Blend::create(std::span<const double> weights) {
  if (weights.empty()) return absl::InvalidArgumentError("a blend of no sources");
  for (size_t source = 0; source < weights.size(); ++source) {
    if (std::isfinite(weights[source]) && weights[source] > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("weight ", weights[source], " of source ", source, ": must be above 0"));
  }
  Blend blend;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) blend.shares_.push_back(weight / sum);
  if (weights.size() > 1) blend.add_node(weights, 0, weights.size());
  return blend;
}

size_t Blend::add_node(std::span<const double> weights, size_t first, size_t end) {
  const size_t index = nodes_.size(), middle = first + (end - first) / 2;
  const auto sum = [&](size_t from, size_t to) {
    return std::accumulate(weights.begin() + static_cast<std::ptrdiff_t>(from),
                           weights.begin() + static_cast<std::ptrdiff_t>(to), 0.0);
  };
  // Next to 1 it would not fit.
  const double ratio = std::ldexp(sum(first, middle) / sum(first, end), 64);
  const uint64_t rounded = ratio < std::ldexp(1.0, 64) ? static_cast<uint64_t>(ratio) : UINT64_MAX;
  nodes_.push_back({rounded, first, middle, end});
  if (middle - first > 1) {
    const size_t left = add_node(weights, first, middle);
    nodes_[index].left = left;
  }
  if (end - middle > 1) {
    const size_t right = add_node(weights, middle, end);
    nodes_[index].right = right;
  }
  return index;
}

__extension__ using Wide = unsigned __int128;

uint64_t Blend::left_of(uint64_t samples, const Node& node) {
  return static_cast<uint64_t>((Wide{samples} * node.ratio + (Wide{1} << 63)) >> 64);
}

Blend::Place Blend::place(uint64_t sample) const {
  if (nodes_.empty()) return {0, sample};
  for (size_t at = 0;;) {
    const Node& node = nodes_[at];
    const uint64_t left = left_of(sample, node);
    const bool goes_left = left_of(sample + 1, node) > left;
    sample = goes_left ? left : sample - left;
    if (goes_left && node.middle - node.first == 1) return {node.first, sample};
    if (!goes_left && node.end - node.middle == 1) return {node.middle, sample};
    at = goes_left ? node.left : node.right;
  }
}

std::vector<uint64_t> Blend::counts(uint64_t samples) const {
  std::vector<uint64_t> counts(sources(), samples), reach(nodes_.size(), samples);
  for (size_t at = 0; at < nodes_.size(); ++at) {  // A node stands before those below it.
    const Node& node = nodes_[at];
    const uint64_t left = left_of(reach[at], node), right = reach[at] - left;
    (node.middle - node.first == 1 ? counts[node.first] : reach[node.left]) = left;
    (node.end - node.middle == 1 ? counts[node.middle] : reach[node.right]) = right;
  }
  return counts;
}

}  // namespace telar::data
