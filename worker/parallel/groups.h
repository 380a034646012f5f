// The communicators of a job: which ranks meet in which group, and for what.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/collectives.h"
#include "worker/engine/op.h"
#include "worker/parallel/mesh.h"

namespace telar::parallel {

// Named after its role and first rank: "tensor.4". Its ranks ascend.
using backend::Group;

// What a rank's groups are for. At most one group of a role a rank.
enum class Role : uint8_t {
  kWorld,      // Scalars of a step: counts, losses, norms.
  kTensor,     // The slices of a layer.
  kKeyValue,   // Tensor ranks that hold the same key-value heads.
  kShard,      // Replicas that split their state: gradients.
  kGather,     // The same ranks: weights, so that both may be under way.
  kReplicate,  // Replicas across shard groups: gradients of hybrid sharding.
  kPipeline,   // The stages of one replica: what one stage tells all.
  kTied,       // First and last stage, where both hold the embedding table.
};
inline constexpr int kRoles = 8;

struct GroupOptions {
  int key_value_replicas = 1;  // Tensor ranks in a row that hold one key-value head.
  int shard = 1;               // Replicas in a row that split their state; divides dp_size.
  bool gathers = false;        // Weights are gathered over a shard group.
  // The embedding table is the head's, too, and these pipeline ranks, which have the first and the last stage, differ.
  bool tied_across = false;
  int first_stage_rank = 0, last_stage_rank = 0;
  // Pairs of pipeline ranks (from, to) between which tensors flow; each has a group of its own, so that no direction
  // waits for another.
  std::vector<std::pair<int, int>> flows;
};

// The groups of one rank, in the order in which all ranks create them.
class Groups {
 public:
  Groups(const Mesh& mesh, const GroupOptions& options);

  const std::vector<Group>& list() const { return list_; }  // By engine::GroupId.
  // Members of the group of that role; 1 where there is none.
  int size(Role role) const;
  int rank(Role role) const;            // This rank's place among them.
  engine::GroupId id(Role role) const;  // Only where size(role) > 1.
  engine::GroupId flow(int from, int to) const { return flows_.at({from, to}); }

 private:
  void add(Role role, const char* name, std::vector<int> ranks);

  int self_;
  std::vector<Group> list_;
  std::array<int, kRoles> by_role_{};  // Index in list_; -1: none.
  std::map<std::pair<int, int>, engine::GroupId> flows_;
};

}  // namespace telar::parallel
