// What every rank of a job makes of its groups must fit what the others make of theirs.
#include "worker/parallel/groups.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

namespace telar::parallel {
namespace {

struct Job {
  int dp = 1, pp = 1, tp = 1;
  GroupOptions options;

  int world() const { return dp * pp * tp; }
  std::string name() const {
    return "dp " + std::to_string(dp) + " pp " + std::to_string(pp) + " tp " + std::to_string(tp) + " kv " +
           std::to_string(options.key_value_replicas) + " shard " + std::to_string(options.shard) +
           (options.gathers ? " gathers" : "") + (options.tied_across ? " tied" : "") + " flows " +
           std::to_string(options.flows.size());
  }
  Mesh mesh(int rank) const { return Mesh::of_rank(rank, dp, pp, tp); }
  std::vector<Groups> of_all_ranks() const {
    std::vector<Groups> all;
    for (int rank = 0; rank < world(); ++rank) all.emplace_back(mesh(rank), options);
    return all;
  }
};

// Between neighbours of a loop (r, r + 1, .., 0) or of a V (0, .., p - 1, .., 0).
std::vector<std::pair<int, int>> flows_of(int pp, bool loop) {
  std::vector<std::pair<int, int>> flows;
  for (int r = 0; r + 1 < pp; ++r) {
    flows.emplace_back(r, r + 1);
    flows.emplace_back(r + 1, r);
  }
  if (loop && pp > 1) {
    flows.emplace_back(pp - 1, 0);
    flows.emplace_back(0, pp - 1);
  }
  return flows;
}

std::vector<Job> jobs() {
  std::vector<Job> all;
  for (const int dp : {1, 2, 4, 6}) {
    for (const int pp : {1, 2, 3, 4}) {
      for (const int tp : {1, 2, 4, 8}) {
        for (int shard = 1; shard <= dp; ++shard) {
          if (dp % shard != 0) continue;
          for (const int kv : {1, 2, 8}) {
            if (tp % kv != 0) continue;
            for (const bool tied : {false, true}) {
              if (tied && pp == 1) continue;
              const bool loop = (dp + pp + tp + shard) % 2 == 0;
              GroupOptions options{kv, shard, shard > 1, tied, 0, pp - 1, flows_of(pp, loop)};
              all.push_back({dp, pp, tp, options});
            }
          }
        }
      }
    }
  }
  return all;
}

class GroupsTest : public ::testing::Test {
 protected:
  static std::optional<size_t> find(const Groups& groups, const std::string& name) {
    for (size_t i = 0; i < groups.list().size(); ++i) {
      if (groups.list()[i].name == name) return i;
    }
    return std::nullopt;
  }
};

TEST_F(GroupsTest, MembersAgreeOnNameAndOrder) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(job.name());
    const std::vector<Groups> all = job.of_all_ranks();
    for (int rank = 0; rank < job.world(); ++rank) {
      std::set<std::string> names;
      for (const Group& group : all[static_cast<size_t>(rank)].list()) {
        EXPECT_TRUE(names.insert(group.name).second) << group.name << " twice";
        EXPECT_GE(group.ranks.size(), 2u) << group.name;
        EXPECT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end(), std::less_equal<>())) << group.name;
        EXPECT_THAT(group.ranks, ::testing::Contains(rank)) << group.name;
        for (const int member : group.ranks) {
          const Groups& other = all[static_cast<size_t>(member)];
          const auto found = find(other, group.name);
          ASSERT_TRUE(found.has_value()) << "rank " << member << " lacks " << group.name << " of rank " << rank;
          ASSERT_EQ(other.list()[*found].ranks, group.ranks) << group.name;
        }
      }
    }
  }
}

// Each rank makes its groups one after another and waits for a group's other members: if what comes before what, on
// any rank, has no circle, none waits forever.
TEST_F(GroupsTest, CanBeMadeInTheOrderOfTheLists) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(job.name());
    const std::vector<Groups> all = job.of_all_ranks();
    std::vector<size_t> next(all.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < all.size(); ++rank) {
        if (next[rank] == all[rank].list().size()) continue;
        const Group& group = all[rank].list()[next[rank]];
        const bool all_there = std::all_of(group.ranks.begin(), group.ranks.end(), [&](int member) {
          const auto m = static_cast<size_t>(member);
          return next[m] < all[m].list().size() && all[m].list()[next[m]].name == group.name;
        });
        if (!all_there) continue;
        for (const int member : group.ranks) ++next[static_cast<size_t>(member)];
        moved = true;
      }
    }
    for (size_t rank = 0; rank < all.size(); ++rank) {
      ASSERT_EQ(next[rank], all[rank].list().size())
          << "rank " << rank << " waits at " << all[rank].list()[next[rank]].name;
    }
  }
}

TEST_F(GroupsTest, HaveTheMembersOfTheirRole) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(job.name());
    for (int rank = 0; rank < job.world(); ++rank) {
      const Mesh mesh = job.mesh(rank);
      const Groups groups(mesh, job.options);
      const auto expect = [&](Role role, int size, int place) {
        EXPECT_EQ(groups.size(role), size) << "role " << static_cast<int>(role) << " rank " << rank;
        EXPECT_EQ(groups.rank(role), size == 1 ? 0 : place) << "role " << static_cast<int>(role) << " rank " << rank;
        if (size == 1) return;
        EXPECT_EQ(groups.list()[groups.id(role)].ranks[static_cast<size_t>(place)], rank);
      };
      const int shard = job.options.shard, kv = job.options.key_value_replicas;
      expect(Role::kWorld, job.world(), rank);
      expect(Role::kTensor, job.tp, mesh.tp);
      expect(Role::kKeyValue, kv, mesh.tp % kv);
      expect(Role::kShard, shard, mesh.dp % shard);
      expect(Role::kGather, job.options.gathers ? shard : 1, mesh.dp % shard);
      expect(Role::kReplicate, job.dp / shard, mesh.dp / shard);
      expect(Role::kPipeline, job.pp, mesh.pp);
      const bool end = mesh.pp == 0 || mesh.pp == job.pp - 1;
      expect(Role::kTied, job.options.tied_across && end ? 2 : 1, mesh.pp == 0 ? 0 : 1);
    }
  }
}

// All members of a group are alike in what the group does not go along.
TEST_F(GroupsTest, RunAlongOneDimension) {
  const auto along = [](const Job& job, Role role, const Mesh& a, const Mesh& b) {
    const bool tp = a.tp == b.tp, dp = a.dp == b.dp, pp = a.pp == b.pp;
    const int kv = job.options.key_value_replicas, shard = job.options.shard;
    switch (role) {
      case Role::kWorld:
        return true;
      case Role::kTensor:
        return dp && pp;
      case Role::kKeyValue:
        return dp && pp && a.tp / kv == b.tp / kv;
      case Role::kShard:
      case Role::kGather:
        return tp && pp && a.dp / shard == b.dp / shard;
      case Role::kReplicate:
        return tp && pp && a.dp % shard == b.dp % shard;
      case Role::kPipeline:
      case Role::kTied:
        return tp && dp;
    }
    return false;
  };
  for (const Job& job : jobs()) {
    SCOPED_TRACE(job.name());
    for (int rank = 0; rank < job.world(); ++rank) {
      const Groups groups(job.mesh(rank), job.options);
      for (int r = 0; r < kRoles; ++r) {
        const Role role = static_cast<Role>(r);
        if (groups.size(role) == 1) continue;
        for (const int member : groups.list()[groups.id(role)].ranks) {
          EXPECT_TRUE(along(job, role, job.mesh(rank), job.mesh(member)))
              << "role " << r << ": " << rank << " and " << member;
        }
      }
    }
  }
}

TEST_F(GroupsTest, GiveEachDirectionOfAFlowItsOwn) {
  for (const Job& job : jobs()) {
    SCOPED_TRACE(job.name());
    for (int rank = 0; rank < job.world(); ++rank) {
      const Mesh mesh = job.mesh(rank);
      const Groups groups(mesh, job.options);
      std::set<engine::GroupId> seen;
      std::set<std::pair<int, int>> distinct(job.options.flows.begin(), job.options.flows.end());
      for (const auto& [from, to] : distinct) {
        if (from != mesh.pp && to != mesh.pp) continue;
        const engine::GroupId id = groups.flow(from, to);
        EXPECT_TRUE(seen.insert(id).second) << from << " to " << to;
        Mesh a = mesh, b = mesh;
        a.pp = std::min(from, to);
        b.pp = std::max(from, to);
        EXPECT_THAT(groups.list()[id].ranks, ::testing::ElementsAre(a.rank(), b.rank()));
      }
    }
  }
}

}  // namespace
}  // namespace telar::parallel
