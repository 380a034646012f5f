#include "server/cluster/placement.h"

#include <algorithm>
#include <map>

namespace telar::server::cluster {
namespace {

struct Share {
  size_t from;
  uint32_t count;
};

// Who may give how much.
struct Giver {
  uint32_t usable = 0;
  uint32_t rack = 0;
};

// The rack to go on in, of those that `equals` (numbers of givers) are in: the smallest that holds all that is wanted,
// else the largest.
uint32_t best_rack(const std::vector<Giver>& givers, const std::vector<size_t>& equals, const std::vector<bool>& taken,
                   uint32_t wanted) {
  std::map<uint32_t, uint64_t> sums;
  for (const size_t number : equals) sums[givers[number].rack] = 0;
  if (sums.size() == 1) return sums.begin()->first;
  for (size_t i = 0; i < givers.size(); ++i) {
    const auto sum = sums.find(givers[i].rack);
    if (sum != sums.end() && !taken[i]) sum->second += givers[i].usable;
  }
  const auto better = [wanted](uint64_t a, uint64_t b) {
    if ((a >= wanted) != (b >= wanted)) return a >= wanted;
    return a >= wanted ? a < b : a > b;
  };
  uint32_t best = givers[equals.front()].rack;
  for (const size_t number : equals) {
    if (better(sums.at(givers[number].rack), sums.at(best))) best = givers[number].rack;
  }
  return best;
}

// Takes `wanted` from the fewest givers.
std::optional<std::vector<Share>> take(const std::vector<Giver>& givers, uint32_t wanted) {
  std::vector<size_t> order(givers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return givers[a].usable > givers[b].usable; });
  std::vector<Share> shares;
  std::vector<bool> taken(givers.size());
  std::optional<uint32_t> rack;
  while (wanted > 0) {
    const auto left = std::find_if(order.begin(), order.end(), [&](size_t number) { return !taken[number]; });
    if (left == order.end() || givers[*left].usable == 0) return std::nullopt;
    // The largest; or, once one of them holds the rest, the smallest that does.
    uint32_t size = givers[*left].usable;
    for (auto at = left; at != order.end() && givers[*at].usable >= wanted; ++at) {
      if (!taken[*at]) size = givers[*at].usable;
    }
    std::vector<size_t> equals;
    for (auto at = left; at != order.end() && givers[*at].usable >= size; ++at) {
      if (!taken[*at] && givers[*at].usable == size) equals.push_back(*at);
    }
    const auto in_rack = [&](size_t number) { return givers[number].rack == *rack; };
    if (!rack || std::none_of(equals.begin(), equals.end(), in_rack)) rack = best_rack(givers, equals, taken, wanted);
    // The rest goes to the last one by name, so that those in front stay whole for who needs many.
    const size_t chosen = size >= wanted ? *std::find_if(equals.rbegin(), equals.rend(), in_rack)
                                         : *std::find_if(equals.begin(), equals.end(), in_rack);
    taken[chosen] = true;
    shares.push_back({chosen, std::min(size, wanted)});
    wanted -= shares.back().count;
  }
  return shares;
}

struct Domain {
  size_t begin = 0;  // Among the node's devices.
  uint32_t size = 0;
};

std::vector<Domain> domains_of(const FreeNode& node) {
  std::vector<Domain> domains;
  for (size_t i = 0; i < node.devices.size(); ++i) {
    if (i == 0 || node.devices[i].domain != node.devices[i - 1].domain) domains.push_back({i, 0});
    ++domains.back().size;
  }
  return domains;
}

// `count` devices of a node, a multiple of `unit` from each domain; the node has them.
void append(const FreeNode& node, uint32_t count, uint32_t unit, std::vector<uint32_t>& slots) {
  const std::vector<Domain> domains = domains_of(node);
  std::vector<Giver> givers;
  for (const Domain& domain : domains) givers.push_back({domain.size / unit * unit});
  const auto shares = take(givers, count);
  for (const Share& share : *shares) {
    for (uint32_t i = 0; i < share.count; ++i) slots.push_back(node.devices[domains[share.from].begin + i].id);
  }
}

// Slots in an order in which neighbours are close: every `unit` in one domain, every `block` (units of them) on one
// node.
std::optional<std::vector<uint32_t>> close_slots(const std::vector<FreeNode>& free,
                                                 const std::vector<std::vector<uint32_t>>& domains,
                                                 const std::vector<uint32_t>& racks, uint32_t world, uint32_t unit,
                                                 uint32_t block) {
  std::vector<Giver> givers;
  for (size_t node = 0; node < free.size(); ++node) {
    uint32_t groups = 0;
    for (const uint32_t size : domains[node]) groups += size / unit;
    givers.push_back({groups * unit / block * block, racks[node]});
  }
  const auto shares = take(givers, world);
  if (!shares) return std::nullopt;
  std::vector<uint32_t> slots;
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

std::optional<std::vector<uint32_t>> place(std::vector<FreeNode> free, const GangShape& shape) {
  std::sort(free.begin(), free.end(), [](const FreeNode& a, const FreeNode& b) { return a.node < b.node; });
  std::map<std::string, uint32_t> numbers;
  std::vector<uint32_t> racks;
  std::vector<std::vector<uint32_t>> domains(free.size());
  for (size_t node = 0; node < free.size(); ++node) {
    racks.push_back(numbers.try_emplace(free[node].rack, static_cast<uint32_t>(numbers.size())).first->second);
    for (const Domain& domain : domains_of(free[node])) domains[node].push_back(domain.size);
  }
  // What stays on one node: a stage with all its replicas; or what of it splits its state; or a tensor-parallel group.
  for (const uint32_t block : {shape.tensor * shape.data, shape.tensor * shape.shard, shape.tensor}) {
    if (auto slots = close_slots(free, domains, racks, shape.world(), shape.tensor, block)) return slots;
  }
  return shape.tensor_across_domains ? close_slots(free, domains, racks, shape.world(), 1, 1) : std::nullopt;
}

uint32_t groups_in(const std::vector<v1::Device>& devices, uint32_t tensor) {
  std::map<uint32_t, uint32_t> sizes;
  for (const v1::Device& device : devices) ++sizes[device.nvlink_domain()];
  uint32_t groups = 0;
  for (const auto& [domain, size] : sizes) groups += size / tensor;
  return groups;
}

uint32_t widest_domain(const std::vector<v1::Device>& devices) {
  std::map<uint32_t, uint32_t> sizes;
  uint32_t widest = 0;
  for (const v1::Device& device : devices) widest = std::max(widest, ++sizes[device.nvlink_domain()]);
  return widest;
}

}  // namespace telar::server::cluster
