// Several sources by weight: which of them gives sample i of a run, and which of its own samples that is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::data {

// The sources are the leaves of a binary tree, in their order, each node's list cut in the middle. Of n samples that
// reach a node, floor(n r + 1/2) go to its left, r being the left leaves' share of the node's weight; the sample that
// makes this number grow goes there. So counts and places follow from n alone, in O(log sources), with no table; the
// first n samples of a run, for every n, have n times each source's share of the weights, up to log2(sources) / 2 + 1/2
// samples. r is rounded to 2^-64. Immutable.
class Blend {
 public:
  // INVALID_ARGUMENT: none, or a weight that is not finite and above 0.
  static absl::StatusOr<Blend> create(std::span<const double> weights);

  size_t sources() const { return shares_.size(); }
  // Weight over the sum of all.
  double share(size_t source) const { return shares_[source]; }
  struct Place {
    size_t source = 0;
    uint64_t index = 0;
    bool operator==(const Place&) const = default;
  };
  Place place(uint64_t sample) const;
  // How many of the first `samples` samples each source gives.
  std::vector<uint64_t> counts(uint64_t samples) const;

 private:
  struct Node {
    uint64_t ratio = 0;  // r times 2^64.
    size_t first = 0, middle = 0, end = 0;
    size_t left = 0, right = 0;  // Nodes; where a side is one source, not used.
  };
  static uint64_t left_of(uint64_t samples, const Node& node);
  size_t add_node(std::span<const double> weights, size_t first, size_t end);

  std::vector<double> shares_;
  std::vector<Node> nodes_;  // The first is the root; none for one source.
};

}  // namespace telar::data
