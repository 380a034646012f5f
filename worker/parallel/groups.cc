#include "worker/parallel/groups.h"

#include <algorithm>

namespace telar::parallel {

Groups::Groups(const Mesh& mesh, const GroupOptions& options) : self_(mesh.rank()) {
  by_role_.fill(-1);
  const auto rank_at = [&](int pp, int dp, int tp) {
    Mesh other = mesh;
    other.pp = pp;
    other.dp = dp;
    other.tp = tp;
    return other.rank();
  };
  // `count` ranks from `first` on, each got from its index by `at`.
  const auto row = [](int first, int count, auto at) {
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(at(first + i));
    return ranks;
  };
  const auto over_dp = [&](int first, int count, int stride) {
    return row(0, count, [&](int i) { return rank_at(mesh.pp, first + i * stride, mesh.tp); });
  };
  const int kv = options.key_value_replicas, shard = options.shard;

  add(Role::kWorld, "world", row(0, mesh.world_size(), [](int i) { return i; }));
  add(Role::kTensor, "tensor", row(0, mesh.tp_size, [&](int i) { return rank_at(mesh.pp, mesh.dp, i); }));
  add(Role::kKeyValue, "key_value", row(mesh.tp / kv * kv, kv, [&](int i) { return rank_at(mesh.pp, mesh.dp, i); }));
  add(Role::kShard, "shard", over_dp(mesh.dp / shard * shard, shard, 1));
  if (options.gathers) add(Role::kGather, "gather", over_dp(mesh.dp / shard * shard, shard, 1));
  add(Role::kReplicate, "replicate", over_dp(mesh.dp % shard, mesh.dp_size / shard, shard));
  add(Role::kPipeline, "pipeline", row(0, mesh.pp_size, [&](int i) { return rank_at(i, mesh.dp, mesh.tp); }));
  const int first = options.first_stage_rank, last = options.last_stage_rank;
  if (options.tied_across && (mesh.pp == first || mesh.pp == last)) {
    add(Role::kTied, "tied",
        {rank_at(std::min(first, last), mesh.dp, mesh.tp), rank_at(std::max(first, last), mesh.dp, mesh.tp)});
  }
  std::vector<std::pair<int, int>> flows = options.flows;
  std::sort(flows.begin(), flows.end());
  flows.erase(std::unique(flows.begin(), flows.end()), flows.end());
  for (const auto& [from, to] : flows) {
    if (from != mesh.pp && to != mesh.pp) continue;
    const int sender = rank_at(from, mesh.dp, mesh.tp), receiver = rank_at(to, mesh.dp, mesh.tp);
    flows_[{from, to}] = static_cast<engine::GroupId>(list_.size());
    list_.push_back({"flow." + std::to_string(sender) + "-" + std::to_string(receiver),
                     {std::min(sender, receiver), std::max(sender, receiver)}});
  }
}

void Groups::add(Role role, const char* name, std::vector<int> ranks) {
  if (ranks.size() < 2) return;
  by_role_[static_cast<size_t>(role)] = static_cast<int>(list_.size());
  list_.push_back({std::string(name) + "." + std::to_string(ranks.front()), std::move(ranks)});
}

int Groups::size(Role role) const {
  const int index = by_role_[static_cast<size_t>(role)];
  return index < 0 ? 1 : static_cast<int>(list_[static_cast<size_t>(index)].ranks.size());
}

int Groups::rank(Role role) const {
  const int index = by_role_[static_cast<size_t>(role)];
  if (index < 0) return 0;
  const std::vector<int>& ranks = list_[static_cast<size_t>(index)].ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), self_) - ranks.begin());
}

engine::GroupId Groups::id(Role role) const {
  return static_cast<engine::GroupId>(by_role_[static_cast<size_t>(role)]);
}

}  // namespace telar::parallel
