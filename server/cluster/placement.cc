#include "server/cluster/placement.h"

#include <algorithm>

namespace telar::server::cluster {

std::optional<std::vector<Slot>> place(std::vector<FreeNode> free, uint32_t world, uint32_t tensor,
                                       uint32_t largest_node) {
  const uint32_t unit = tensor == 0 || tensor > largest_node ? 1 : tensor;
  const auto usable = [unit](const FreeNode& node) { return static_cast<uint32_t>(node.devices.size()) / unit * unit; };
  // Largest first needs the fewest nodes; by name where they are equal.
  std::sort(free.begin(), free.end(), [&](const FreeNode& a, const FreeNode& b) {
    return usable(a) != usable(b) ? usable(a) > usable(b) : a.node < b.node;
  });

  std::vector<Slot> slots;
  uint32_t missing = world;
  size_t next = 0;
  while (missing > 0) {
    if (next == free.size() || usable(free[next]) == 0) return std::nullopt;
    size_t chosen = next;
    // The last node: the smallest that still holds the rest.
    while (chosen + 1 < free.size() && usable(free[chosen]) >= missing && usable(free[chosen + 1]) >= missing) {
      ++chosen;
    }
    const uint32_t count = std::min(usable(free[chosen]), missing);
    for (uint32_t i = 0; i < count; ++i) slots.push_back({free[chosen].node, free[chosen].devices[i]});
    missing -= count;
    ++next;  // Another node than `next` is chosen only for the rest, and then nothing is missing.
  }
  return slots;
}

}  // namespace telar::server::cluster
