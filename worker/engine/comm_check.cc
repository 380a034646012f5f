#include "worker/engine/comm_check.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "worker/engine/graph.h"

namespace telar::engine {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);
constexpr size_t kLongestCycleTold = 12;

struct Place {  // Of a call.
  size_t rank = 0;
  OpId op = 0;
};

class CommChecker {
 public:
  CommChecker(std::span<const RankProgram> ranks, std::span<const CommGroup> groups) : ranks_(ranks), groups_(groups) {
    for (const RankProgram& rank : ranks) {
      first_.push_back(node_.size());
      for (size_t op = 0; op < rank.program->ops().size(); ++op) node_.push_back(node_.size());
    }
  }

  absl::Status match() {
    absl::Status status = collect();
    for (size_t group = 0; status.ok() && group < groups_.size(); ++group) {
      status = match_collectives(group);
      if (status.ok()) status = match_messages(group);
    }
    for (size_t place = 0; place < node_.size(); ++place) node_[place] = node_of(place);
    return status;
  }

  absl::Status find_cycle(CommOrder order) {
    std::vector<std::vector<size_t>> before(node_.size());  // By node that stands for a call or an op.
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      absl::Status status = add_order(rank, order, before);
      if (!status.ok()) return status;
    }
    std::vector<std::vector<size_t>> behind(node_.size());
    std::vector<size_t> missing(node_.size(), 0), ready;
    for (size_t node = 0; node < node_.size(); ++node) {
      if (node_[node] != node) continue;
      missing[node] = before[node].size();
      for (size_t earlier : before[node]) behind[earlier].push_back(node);
      if (missing[node] == 0) ready.push_back(node);
    }
    while (!ready.empty()) {
      const size_t node = ready.back();
      ready.pop_back();
      for (size_t later : behind[node]) {
        if (--missing[later] == 0) ready.push_back(later);
      }
    }
    const auto stuck = std::find_if(missing.begin(), missing.end(), [](size_t count) { return count > 0; });
    if (stuck == missing.end()) return absl::OkStatus();
    return cycle(static_cast<size_t>(stuck - missing.begin()), before, missing);
  }

 private:
  static absl::Status wrong(const std::string& what) { return absl::InvalidArgumentError(what); }
  const Op& op_at(const Place& place) const { return ranks_[place.rank].program->ops()[place.op]; }
  size_t index(const Place& place) const { return first_[place.rank] + place.op; }
  std::string told(const Place& place) const {
    const Op& op = op_at(place);
    return absl::StrCat("rank ", place.rank, " '", op.name, "'", op.comm ? " " + op.comm->to_string() : "");
  }
  std::string group_name(size_t group) const { return absl::StrCat("group '", groups_[group].name, "'"); }

  absl::Status collect() {
    collectives_.resize(groups_.size());
    messages_.resize(groups_.size());
    for (size_t group = 0; group < groups_.size(); ++group) collectives_[group].resize(groups_[group].ranks.size());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (OpId op = 0; op < ranks_[rank].program->ops().size(); ++op) {
        if (!op_at({rank, op}).comm) continue;
        absl::Status status = collect({rank, op});
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status collect(const Place& place) {
    const CommCall& call = *op_at(place).comm;
    const std::vector<size_t>& known = ranks_[place.rank].groups;
    if (call.group >= known.size()) return wrong(absl::StrCat(told(place), ": the rank has no group ", call.group));
    const size_t group = known[call.group];
    const std::vector<size_t>& members = groups_[group].ranks;
    const auto found = std::find(members.begin(), members.end(), place.rank);
    if (found == members.end()) return wrong(absl::StrCat(told(place), ": not a member of ", group_name(group)));
    const auto own = static_cast<int>(found - members.begin());
    if (!call.point_to_point()) {
      collectives_[group][static_cast<size_t>(own)].push_back(place);
      return absl::OkStatus();
    }
    const auto is_peer = [&](int rank) { return static_cast<size_t>(rank) < members.size() && rank != own; };
    if ((call.sends() && !is_peer(call.peer)) || (call.receives() && !is_peer(call.receives_from()))) {
      return wrong(absl::StrCat(told(place), ": no such peer in ", group_name(group)));
    }
    if (call.sends()) messages_[group][{own, call.peer}].first.push_back(place);
    if (call.receives()) messages_[group][{call.receives_from(), own}].second.push_back(place);
    return absl::OkStatus();
  }

  // An exchange is in two messages, so that a chain of calls may become one node.
  size_t node_of(size_t place) const {
    while (node_[place] != place) place = node_[place];
    return place;
  }
  void merge(const Place& a, const Place& b) { node_[node_of(index(b))] = node_of(index(a)); }

  absl::Status match_collectives(size_t group) {
    const std::vector<std::vector<Place>>& members = collectives_[group];
    for (size_t member = 1; member < members.size(); ++member) {
      const std::vector<Place>&first = members[0], &own = members[member];
      for (size_t i = 0; i < std::min(first.size(), own.size()); ++i) {
        CommCall a = *op_at(first[i]).comm, b = *op_at(own[i]).comm;
        a.group = b.group = 0;  // A place in lists that need not be alike.
        if (!(a == b)) {
          return wrong(
              absl::StrCat(group_name(group), ", collective ", i, ": ", told(first[i]), ", but ", told(own[i])));
        }
        merge(first[i], own[i]);
      }
      if (first.size() == own.size()) continue;
      return wrong(absl::StrCat(group_name(group), ": rank ", groups_[group].ranks[0], " makes ", first.size(),
                                " collectives, rank ", groups_[group].ranks[member], " ", own.size()));
    }
    return absl::OkStatus();
  }

  absl::Status match_messages(size_t group) {
    for (const auto& [pair, calls] : messages_[group]) {
      const auto& [sent, received] = calls;
      for (size_t i = 0; i < std::min(sent.size(), received.size()); ++i) {
        const CommCall &a = *op_at(sent[i]).comm, &b = *op_at(received[i]).comm;
        if (a.elements != b.elements || a.dtype != b.dtype) {
          return wrong(
              absl::StrCat(group_name(group), ", message ", i, ": ", told(sent[i]), ", but ", told(received[i])));
        }
        merge(sent[i], received[i]);
      }
      if (sent.size() == received.size()) continue;
      const bool lost = sent.size() > received.size();
      const Place& alone = lost ? sent[received.size()] : received[sent.size()];
      return wrong(absl::StrCat(group_name(group), ": ", told(alone), lost ? " is never received" : " is never sent"));
    }
    return absl::OkStatus();
  }

  absl::Status add_order(size_t rank, CommOrder order, std::vector<std::vector<size_t>>& before) {
    const Program& program = *ranks_[rank].program;
    const auto node = [&](OpId op) { return node_[first_[rank] + op]; };
    Graph graph(program.ops().size());
    if (order == CommOrder::kLanes) {
      absl::StatusOr<Graph> built = build_graph(program);
      if (!built.ok()) return built.status();
      graph = *std::move(built);
    }
    std::map<Lane, OpId> last;
    for (OpId op = 0; op < program.ops().size(); ++op) {
      const Lane lane = order == CommOrder::kLanes ? program.ops()[op].lane : Lane();
      const auto [previous, first] = last.try_emplace(lane, op);
      if (!first) before[node(op)].push_back(node(previous->second));
      previous->second = op;
      for (const Edge& edge : graph[op]) before[node(op)].push_back(node(edge.from));
    }
    return absl::OkStatus();
  }

  // From a node that never gets its turn to one that it waits for, until one comes again.
  absl::Status cycle(size_t node, const std::vector<std::vector<size_t>>& before,
                     const std::vector<size_t>& missing) const {
    std::vector<size_t> path, at(node_.size(), kNone);
    while (at[node] == kNone) {
      at[node] = path.size();
      path.push_back(node);
      node = *std::find_if(before[node].begin(), before[node].end(), [&](size_t other) { return missing[other] > 0; });
    }
    std::string text = "ranks wait for each other, each for the next: ";
    for (size_t i = at[node]; i < path.size(); ++i) {
      if (i - at[node] == kLongestCycleTold) return wrong(text + "...");
      absl::StrAppend(&text, told(path[i]), " -> ");
    }
    return wrong(text + told(node));
  }

  // With all ops that are one call.
  std::string told(size_t node) const {
    std::string text;
    for (size_t i = 0; i < node_.size(); ++i) {
      if (node_[i] != node) continue;
      const Place place = place_of(i);
      absl::StrAppend(&text, text.empty() ? "" : " and ", "rank ", place.rank, " '", op_at(place).name, "'");
    }
    return text;
  }

  Place place_of(size_t node) const {
    const auto next = std::upper_bound(first_.begin(), first_.end(), node);
    const auto rank = static_cast<size_t>(next - first_.begin()) - 1;
    return {rank, static_cast<OpId>(node - first_[rank])};
  }

  using Messages = std::map<std::pair<int, int>, std::pair<std::vector<Place>, std::vector<Place>>>;

  std::span<const RankProgram> ranks_;
  std::span<const CommGroup> groups_;
  std::vector<size_t> first_;                                 // By rank: its first op's place in node_.
  std::vector<size_t> node_;                                  // By op of all ranks: the op that stands for it.
  std::vector<std::vector<std::vector<Place>>> collectives_;  // By group and member.
  std::vector<Messages> messages_;                            // By group: {from, to} -> sends, receives.
};

}  // namespace

absl::Status check_comm(std::span<const RankProgram> ranks, std::span<const CommGroup> groups, CommOrder order) {
  CommChecker checker(ranks, groups);
  absl::Status status = checker.match();
  return status.ok() ? checker.find_cycle(order) : status;
}

}  // namespace telar::engine
