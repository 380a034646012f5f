#include "server/cluster/placement.h"

#include <algorithm>
#include <map>

namespace telar::server::cluster {
namespace {

struct Share {
  size_t from;
  uint32_t count;
};

// Takes `wanted` from the fewest holders, where holder i has `usable[i]`.
std::optional<std::vector<Share>> take(const std::vector<uint32_t>& usable, uint32_t wanted) {
  std::vector<size_t> order(usable.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return usable[a] > usable[b]; });
  std::vector<Share> shares;
  for (size_t next = 0; wanted > 0; ++next) {
    if (next == order.size() || usable[order[next]] == 0) return std::nullopt;
    size_t chosen = next;
    // The last one: the smallest that still holds the rest.
    while (chosen + 1 < order.size() && usable[order[chosen]] >= wanted && usable[order[chosen + 1]] >= wanted) {
      ++chosen;
    }
    shares.push_back({order[chosen], std::min(usable[order[chosen]], wanted)});
    wanted -= shares.back().count;  // Another than `next` is chosen only for the rest; then nothing is wanted any more.
  }
  return shares;
}

using Domain = std::vector<const v1::Device*>;

std::vector<Domain> domains_of(const std::vector<v1::Device>& devices) {
  std::map<uint32_t, Domain> by_number;
  for (const v1::Device& device : devices) by_number[device.nvlink_domain()].push_back(&device);
  std::vector<Domain> domains;
  for (auto& [number, members] : by_number) domains.push_back(std::move(members));
  return domains;
}

// `count` devices of a node, a multiple of `unit` from each domain; the node has them.
void append(const FreeNode& node, uint32_t count, uint32_t unit, std::vector<Slot>& slots) {
  const std::vector<Domain> domains = domains_of(node.devices);
  std::vector<uint32_t> usable;
  for (const Domain& domain : domains) usable.push_back(static_cast<uint32_t>(domain.size()) / unit * unit);
  const auto shares = take(usable, count);
  for (const Share& share : *shares) {
    for (uint32_t i = 0; i < share.count; ++i) slots.push_back({node.node, *domains[share.from][i]});
  }
}

// Slots in an order in which neighbours are close: every `unit` in one domain, every `block` (units of them) on one
// node.
std::optional<std::vector<Slot>> close_slots(const std::vector<FreeNode>& free, uint32_t world, uint32_t unit,
                                             uint32_t block) {
  std::vector<uint32_t> usable;
  for (const FreeNode& node : free) usable.push_back(groups_in(node.devices, unit) * unit / block * block);
  const auto shares = take(usable, world);
  if (!shares) return std::nullopt;
  std::vector<Slot> slots;
  for (const Share& share : *shares) append(free[share.from], share.count, unit, slots);
  return slots;
}

}  // namespace

GangShape shape_of(const v1::JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  GangShape shape{.tensor = std::max(1u, parallel.tensor()),
                  .data = std::max(1u, parallel.data()),
                  .pipeline = std::max(1u, parallel.pipeline())};
  shape.tensor_across_domains = parallel.tensor_across_nodes();
  if (parallel.zero_stage() > 0 && parallel.shard() > 0 && parallel.shard() < shape.data) {
    shape.shard = parallel.shard();
  }
  return shape;
}

std::optional<std::vector<Slot>> place(std::vector<FreeNode> free, const GangShape& shape) {
  std::sort(free.begin(), free.end(), [](const FreeNode& a, const FreeNode& b) { return a.node < b.node; });
  // What stays on one node: a stage with all its replicas; or what of it splits its state; or a tensor-parallel group.
  for (const uint32_t block : {shape.tensor * shape.data, shape.tensor * shape.shard, shape.tensor}) {
    if (auto slots = close_slots(free, shape.world(), shape.tensor, block)) return slots;
  }
  return shape.tensor_across_domains ? close_slots(free, shape.world(), 1, 1) : std::nullopt;
}

uint32_t groups_in(const std::vector<v1::Device>& devices, uint32_t tensor) {
  uint32_t groups = 0;
  for (const Domain& domain : domains_of(devices)) groups += static_cast<uint32_t>(domain.size()) / tensor;
  return groups;
}

uint32_t widest_domain(const std::vector<v1::Device>& devices) {
  size_t widest = 0;
  for (const Domain& domain : domains_of(devices)) widest = std::max(widest, domain.size());
  return static_cast<uint32_t>(widest);
}

}  // namespace telar::server::cluster
