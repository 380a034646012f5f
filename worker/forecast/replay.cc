#include "worker/forecast/replay.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <queue>
#include <set>

#include "absl/strings/str_cat.h"

namespace telar::forecast {
namespace {

using engine::LaneKind;
using engine::OpId;
using engine::Phase;

struct Times {
  double start = 0;
  double end = -1;
};

// A time in which something travels.
struct Beside {
  double start = 0, end = 0;
  float slowdown = 0;
};

// Ops of several ranks that are one: each rank's n-th call of a group.
struct Meeting {
  size_t expected = 0;
  double start = 0, seconds = 0;
  std::vector<std::pair<size_t, OpId>> arrived;  // Rank and op.
};

class Replay {
 public:
  Replay(const std::vector<PaperRank>& ranks, const std::vector<double>& clocks)
      : ranks_(ranks), clocks_(clocks), state_(ranks.size()) {
    std::map<std::string, size_t> members;
    for (const PaperRank& rank : ranks) {
      for (const std::string& name : rank.meetings) ++members[name];
    }
    for (size_t r = 0; r < ranks.size(); ++r) prepare(r, members);
  }

  // Once more from the start, with ops that take as long as is known of them by now.
  absl::Status run() {
    size_t left = 0;
    for (State& state : state_) {
      state.missing = state.predecessors;
      left += state.times.size();
    }
    for (Meeting& meeting : meetings_) meeting.start = meeting.seconds = 0, meeting.arrived.clear();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (OpId op = 0; op < ranks_[r].ops.size(); ++op) {
        if (state_[r].missing[op] == 0) make_ready(r, op);
      }
      state_[r].running = {};
    }
    while (!ready_.empty()) {
      const Ready next = ready_.top();
      ready_.pop();
      left -= arrive(next);
    }
    if (left == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("replay: ", left, " ops wait for each other"));
  }

  void slow_down() {
    for (size_t r = 0; r < ranks_.size(); ++r) slow_down(r);
  }

  PaperTimes read() const {
    PaperTimes times;
    for (const State& state : state_) {
      for (const Times& one : state.times) times.step = std::max(times.step, one.end);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) times.ranks.push_back(read_rank(r, times.step));
    return times;
  }

 private:
  struct State {
    std::vector<Times> times;
    std::vector<double> seconds;
    std::vector<uint32_t> predecessors, missing;  // Ops that must end first; those that have not.
    std::vector<OpId> lane_next;                  // The op behind on its lane, kNoOp: none.
    std::vector<OpId> lane_before;
    std::vector<std::vector<OpId>> followers;  // That wait for its event.
    std::vector<int32_t> meeting;              // Index into meetings_; -1: none.
    std::vector<double> arrived;               // When it was there, partners or not.
    Times running;                             // What the compute lane does, or did last.
  };
  struct Ready {
    double time = 0;
    bool computes = false;
    size_t rank = 0;
    OpId op = 0;
    // What travels has the higher priority.
    auto operator<=>(const Ready&) const = default;
  };

  void prepare(size_t r, const std::map<std::string, size_t>& members) {
    const PaperRank& rank = ranks_[r];
    State& state = state_[r];
    const size_t count = rank.ops.size();
    state.times.resize(count);
    state.predecessors.resize(count);
    state.lane_next.assign(count, engine::kNoOp);
    state.lane_before.assign(count, engine::kNoOp);
    state.followers.resize(count);
    state.meeting.assign(count, -1);
    state.arrived.resize(count);
    std::vector<OpId> last(rank.lanes.size(), engine::kNoOp);
    std::vector<size_t> calls(rank.meetings.size(), 0);
    for (OpId op = 0; op < count; ++op) {
      const PaperOp& paper = rank.ops[op];
      state.seconds.push_back(alone(r, op));
      OpId& before = last[paper.lane];
      state.lane_before[op] = before;
      if (before != engine::kNoOp) state.lane_next[before] = op;
      state.predecessors[op] = paper.waits + (before != engine::kNoOp ? 1 : 0);
      before = op;
      for (uint32_t w = 0; w < paper.waits; ++w) state.followers[rank.waits[paper.first_wait + w]].push_back(op);
      if (paper.meeting < 0) continue;
      const std::string& name = rank.meetings[static_cast<size_t>(paper.meeting)];
      const size_t call = calls[static_cast<size_t>(paper.meeting)]++;
      std::vector<int32_t>& known = by_name_[name];
      if (known.size() <= call) {
        known.push_back(static_cast<int32_t>(meetings_.size()));
        meetings_.push_back({.expected = members.at(name)});
      }
      state.meeting[op] = known[call];
    }
  }

  // With nothing beside it.
  double alone(size_t r, OpId op) const {
    const PaperOp& paper = ranks_[r].ops[op];
    return clocks_.empty() ? paper.seconds : std::max(paper.seconds / clocks_[r], paper.least);
  }

  double ready_time(size_t r, OpId op) const {
    const State& state = state_[r];
    const PaperOp& paper = ranks_[r].ops[op];
    double time = state.lane_before[op] == engine::kNoOp ? 0 : state.times[state.lane_before[op]].end;
    for (uint32_t w = 0; w < paper.waits; ++w) {
      time = std::max(time, state.times[ranks_[r].waits[paper.first_wait + w]].end);
    }
    return time;
  }

  bool computes(size_t r, OpId op) const { return ranks_[r].lanes[ranks_[r].ops[op].lane].kind == LaneKind::kCompute; }
  void make_ready(size_t r, OpId op) { ready_.push({ready_time(r, op), computes(r, op), r, op}); }

  // Everything that it waits for on its own rank has ended. Returns how many ops end by that. Called in the order of
  // time, so what computes at that time is known.
  size_t arrive(const Ready& ready) {
    const auto [at, is_compute, r, op] = ready;
    const double seconds = state_[r].seconds[op];
    double time = at;
    if (is_compute) {
      state_[r].running = {time, time + seconds};
    } else if (ranks_[r].ops[op].waits_for_kernel && state_[r].running.start < time) {
      time = std::max(time, state_[r].running.end);
    }
    state_[r].arrived[op] = time;
    if (state_[r].meeting[op] < 0) {
      end(r, op, {time, time + seconds});
      return 1;
    }
    Meeting& meeting = meetings_[static_cast<size_t>(state_[r].meeting[op])];
    meeting.start = std::max(meeting.start, time);
    meeting.seconds = std::max(meeting.seconds, seconds);
    meeting.arrived.emplace_back(r, op);
    if (meeting.arrived.size() < meeting.expected) return 0;
    const Times times{meeting.start, meeting.start + meeting.seconds};
    for (const auto& [rank, one] : meeting.arrived) end(rank, one, times);
    return meeting.arrived.size();
  }

  void end(size_t r, OpId op, const Times& times) {
    State& state = state_[r];
    state.times[op] = times;
    const auto tell = [&](OpId next) {
      if (--state.missing[next] == 0) make_ready(r, next);
    };
    for (const OpId follower : state.followers[op]) tell(follower);
    if (state.lane_next[op] != engine::kNoOp) tell(state.lane_next[op]);
  }

  // When something travels on the rank, and how much slower that makes what computes. Where several do at once, the one
  // that takes most counts. In the order of time, without overlaps.
  std::vector<Beside> transfers_of(size_t r) const {
    const PaperRank& rank = ranks_[r];
    std::vector<std::pair<double, float>> bounds;  // A slowdown that begins, or, negative, ends.
    for (OpId op = 0; op < rank.ops.size(); ++op) {
      const float slowdown = rank.ops[op].slowdown;
      // One that waits for its partner is there all the same.
      const double begin = state_[r].arrived[op], end = state_[r].times[op].end;
      if (slowdown <= 0 || end <= begin) continue;
      bounds.emplace_back(begin, slowdown);
      bounds.emplace_back(end, -slowdown);
    }
    std::sort(bounds.begin(), bounds.end());
    std::vector<Beside> all;
    std::multiset<float> active;
    double since = 0;
    for (const auto& [time, slowdown] : bounds) {
      if (!active.empty() && time > since) all.push_back({since, time, *active.rbegin()});
      since = time;
      if (slowdown > 0) {
        active.insert(slowdown);
      } else {
        active.erase(active.find(-slowdown));
      }
    }
    return all;
  }

  // What computes beside transfers gets longer by the share of the time that it has them beside it.
  void slow_down(size_t r) {
    const PaperRank& rank = ranks_[r];
    State& state = state_[r];
    const std::vector<Beside> transfers = transfers_of(r);
    size_t first = 0;
    for (OpId op = 0; op < rank.ops.size(); ++op) {
      if (!computes(r, op)) continue;
      const Times& times = state.times[op];
      while (first < transfers.size() && transfers[first].end <= times.start) ++first;
      double extra = 0;
      for (size_t i = first; i < transfers.size() && transfers[i].start < times.end; ++i) {
        extra +=
            (std::min(times.end, transfers[i].end) - std::max(times.start, transfers[i].start)) * transfers[i].slowdown;
      }
      state.seconds[op] = alone(r, op) + extra;
    }
  }

  // Of what the compute lane waited for: the last of the events that it got.
  Phase awaited(size_t r, OpId op) const {
    const PaperOp& paper = ranks_[r].ops[op];
    double latest = -1;
    Phase phase = Phase::kOther;
    for (uint32_t w = 0; w < paper.waits; ++w) {
      const OpId earlier = ranks_[r].waits[paper.first_wait + w];
      if (state_[r].times[earlier].end <= latest) continue;
      latest = state_[r].times[earlier].end;
      phase = phase_of(r, earlier);
    }
    return phase;
  }
  // Where ranks of several stages meet, it is the pipeline that makes them wait.
  Phase phase_of(size_t r, OpId op) const {
    return state_[r].meeting[op] >= 0 && ranks_.size() > 1 ? Phase::kPipelineComm : ranks_[r].ops[op].phase;
  }

  PaperTimes::Rank read_rank(size_t r, double step) const {
    PaperTimes::Rank result;
    const PaperRank& rank = ranks_[r];
    double free = 0, end = 0;
    Phase last = Phase::kOther;
    for (OpId op = 0; op < rank.ops.size(); ++op) {
      const Times& times = state_[r].times[op];
      if (times.end > end) {
        end = times.end;
        last = phase_of(r, op);
      }
      if (rank.lanes[rank.ops[op].lane].kind != LaneKind::kCompute) continue;
      result.busy[static_cast<size_t>(rank.ops[op].phase)] += times.end - times.start;
      if (times.start > free) result.waiting[static_cast<size_t>(awaited(r, op))] += times.start - free;
      free = times.end;
    }
    if (end > free) result.waiting[static_cast<size_t>(last)] += end - free;
    if (step > end) result.waiting[static_cast<size_t>(Phase::kPipelineComm)] += step - end;
    return result;
  }

  const std::vector<PaperRank>& ranks_;
  const std::vector<double>& clocks_;
  std::vector<State> state_;
  std::vector<Meeting> meetings_;
  std::map<std::string, std::vector<int32_t>> by_name_;  // Its meetings in order.
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
};

}  // namespace

absl::StatusOr<PaperTimes> replay(const std::vector<PaperRank>& ranks, const std::vector<double>& clocks) {
  Replay paper(ranks, clocks);
  if (absl::Status status = paper.run(); !status.ok()) return status;
  paper.slow_down();
  if (absl::Status status = paper.run(); !status.ok()) return status;
  return paper.read();
}

}  // namespace telar::forecast
