#include "client/output/trace_clocks.h"

#include <algorithm>
#include <limits>
#include <map>

namespace telar::client {
namespace {

constexpr double kLeastWay = 2e-9;  // Seconds from a cause to its effect: it keeps their order when cut to nanoseconds.
constexpr double kEpsilon = 1e-10;  // Less than that is rounding.
constexpr int kMostRounds = 256;    // Bounds settle in a few; a contradiction never does.
constexpr double kUnbounded = -std::numeric_limits<double>::infinity();

// value[to] >= value[from] + weight.
struct Edge {
  size_t from = 0, to = 0;
  double weight = 0;
};

// Raises values until all edges hold; false: they never do.
bool raise(const std::vector<Edge>& edges, std::vector<double>& values) {
  for (int round = 0; round < kMostRounds; ++round) {
    bool changed = false;
    for (const Edge& edge : edges) {
      const double least = values[edge.from] + edge.weight;
      if (least <= values[edge.to] + kEpsilon) continue;
      values[edge.to] = least;
      changed = true;
    }
    if (!changed) return true;
  }
  return false;
}

class Alignment {
 public:
  Alignment(const std::vector<RankTrace>& traces, const TraceLinks& links) : traces_(traces), links_(links) {}

  TraceClocks align() {
    find_nodes();
    clocks_.basis = nodes_.size() == 1 ? TraceClocks::Basis::kOneNode
                    : comparable()     ? TraceClocks::Basis::kRoundTrips
                                       : TraceClocks::Basis::kWallClocks;
    for (const RankTrace& trace : traces_) starts_.push_back(measured_start(trace));
    origin_ = *std::min_element(starts_.begin(), starts_.end());
    for (double& start : starts_) start -= origin_;
    clocks_.basis == TraceClocks::Basis::kWallClocks ? push() : bound();
    finish();
    return std::move(clocks_);
  }

 private:
  struct Node {
    size_t value = 0;                 // Where its correction is.
    const RankTrace* best = nullptr;  // Whose comparison of the node's clock is the closest.
  };

  void find_nodes() {
    size_t value = traces_.size();
    for (const RankTrace& trace : traces_) {
      const auto [found, added] = nodes_.try_emplace(trace.clock.node, Node{value, &trace});
      if (added) ++value;
      Node& node = found->second;
      const bool closer = trace.clock.offset_error < node.best->clock.offset_error;
      if (!trace.clock.reference.empty() && (node.best->clock.reference.empty() || closer)) node.best = &trace;
    }
    values_ = value;
  }
  const Node& node_of(const RankTrace& trace) const { return nodes_.at(trace.clock.node); }
  const Node& first_node() const { return node_of(traces_[0]); }

  bool comparable() const {
    const std::string& reference = first_node().best->clock.reference;
    return !reference.empty() && std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& one) {
      return one.second.best->clock.reference == reference;
    });
  }

  // By the first node's clock, before any correction.
  double measured_start(const RankTrace& trace) const {
    const RankTrace::Clock& own = trace.clock;
    switch (clocks_.basis) {
      case TraceClocks::Basis::kOneNode:
        return own.start;
      case TraceClocks::Basis::kRoundTrips:
        return own.start + (node_of(trace).best->clock.offset - first_node().best->clock.offset);
      case TraceClocks::Basis::kWallClocks:
        return own.start + (own.wall_ahead - traces_[0].clock.wall_ahead);
    }
    return 0;
  }

  // How far the node's clock may be off the first one's.
  double node_error(const Node& node) const {
    if (node.value == first_node().value) return 0;
    return node.best->clock.offset_error + first_node().best->clock.offset_error;
  }

  const TraceSlice& slice(SliceAt at) const { return traces_[at.trace].slices[at.slice]; }
  double start(SliceAt at) const { return starts_[at.trace] + 1e-9 * static_cast<double>(slice(at).start); }
  double stop(SliceAt at) const { return starts_[at.trace] + 1e-9 * static_cast<double>(slice(at).stop); }

  void tie_traces_to_nodes(std::vector<Edge>& edges) const {
    for (size_t i = 0; i < traces_.size(); ++i) {
      const size_t node = node_of(traces_[i]).value;
      edges.push_back({node, i, -traces_[i].clock.start_error});
      edges.push_back({i, node, -traces_[i].clock.start_error});
    }
  }

  // Adds a value for each meeting: when it had begun everywhere.
  void add_causes(std::vector<Edge>& edges) {
    for (const TraceLinks::Pair& one : links_.messages) {
      edges.push_back({one.from.trace, one.to.trace, start(one.from) - stop(one.to) + kLeastWay});
    }
    for (const TraceLinks::Meeting& meeting : links_.meetings) {
      // Of a broadcast only the root's begin is a cause.
      if (!meeting.root && slice(meeting.members[0]).root >= 0) continue;
      const size_t begun = values_++;
      for (size_t i = 0; i < meeting.members.size(); ++i) {
        const SliceAt& at = meeting.members[i];
        const bool begins = !meeting.root || *meeting.root == i;
        if (begins) edges.push_back({at.trace, begun, start(at)});
        if (!meeting.root || !begins) edges.push_back({begun, at.trace, kLeastWay - stop(at)});
      }
    }
  }

  // The middle between the bounds that follow from round trips, and cause and effect.
  void bound() {
    std::vector<Edge> edges;
    const size_t source = first_node().value;
    for (const auto& [number, node] : nodes_) {
      if (node.value == source) continue;
      edges.push_back({source, node.value, -node_error(node)});
      edges.push_back({node.value, source, -node_error(node)});
    }
    tie_traces_to_nodes(edges);
    add_causes(edges);
    std::vector<double> low(values_, kUnbounded), high(values_, kUnbounded);
    low[source] = high[source] = 0;
    bool fits = raise(edges, low);
    for (Edge& edge : edges) std::swap(edge.from, edge.to);
    fits = fits && raise(edges, high);
    clocks_.consistent = fits && low[source] <= kEpsilon && high[source] <= kEpsilon;
    for (size_t i = 0; i < traces_.size(); ++i) {
      const double measured = node_error(node_of(traces_[i])) + traces_[i].clock.start_error;
      corrections_.push_back(clocks_.consistent ? (low[i] - high[i]) / 2 : 0);
      clocks_.error.push_back(clocks_.consistent ? std::max(0.0, (-high[i] - low[i]) / 2) : measured);
    }
  }

  // No bounds: later by as little as cause and effect ask for.
  void push() {
    std::vector<Edge> edges;
    tie_traces_to_nodes(edges);
    std::vector<double> values(values_, 0);
    add_causes(edges);
    values.resize(values_, kUnbounded);
    clocks_.consistent = raise(edges, values);
    for (size_t i = 0; i < traces_.size(); ++i) {
      corrections_.push_back(clocks_.consistent ? values[i] : 0);
      clocks_.error.push_back(-1);
    }
  }

  void finish() {
    for (size_t i = 0; i < traces_.size(); ++i) {
      clocks_.start.push_back(starts_[i] + corrections_[i]);
      clocks_.offset.push_back(starts_[i] + origin_ - traces_[i].clock.start + corrections_[i]);
    }
    const double first = *std::min_element(clocks_.start.begin(), clocks_.start.end());
    for (double& start : clocks_.start) start -= first;
  }

  const std::vector<RankTrace>& traces_;
  const TraceLinks& links_;
  TraceClocks clocks_;
  std::map<int64_t, Node> nodes_;
  size_t values_ = 0;           // Corrections of traces, then of nodes, then meetings.
  std::vector<double> starts_;  // Measured, the earliest at 0.
  double origin_ = 0;           // By the first node's clock.
  std::vector<double> corrections_;
};

}  // namespace

TraceClocks align_clocks(const std::vector<RankTrace>& traces, const TraceLinks& links) {
  return Alignment(traces, links).align();
}

std::string in_words(TraceClocks::Basis basis) {
  switch (basis) {
    case TraceClocks::Basis::kOneNode:
      return "one node";
    case TraceClocks::Basis::kRoundTrips:
      return "round trips";
    case TraceClocks::Basis::kWallClocks:
      return "wall clocks";
  }
  return "?";
}

}  // namespace telar::client
