#include "client/output/trace_links.h"

#include <map>
#include <tuple>

namespace telar::client {
namespace {

class LinkFinder {
 public:
  LinkFinder(const std::vector<RankTrace>& traces, const TraceNames& names) : traces_(traces), names_(names) {}

  TraceLinks find() {
    for (uint32_t i = 0; i < traces_.size(); ++i) {
      for (uint32_t k = 0; k < traces_[i].slices.size(); ++k) note({i, k});
    }
    TraceLinks links;
    for (const auto& [key, ends] : messages_) {
      if (ends.from && ends.to) {
        links.messages.push_back({*ends.from, *ends.to});
      } else {
        ++links.single;
      }
    }
    for (auto& [key, meeting] : meetings_) {
      if (meeting.members.size() > 1) links.meetings.push_back(std::move(meeting));
    }
    add_hops(links);
    return links;
  }

 private:
  struct Ends {
    std::optional<SliceAt> from, to;
  };
  struct Stay {  // Of a micro-batch in a stage.
    SliceAt first, last;
  };
  // Step, lane's name, from, to, number.
  using MessageKey = std::tuple<uint64_t, uint32_t, int64_t, int64_t, int64_t>;
  using MeetingKey = std::tuple<uint64_t, uint32_t, int64_t>;               // Step, lane's name, number.
  using WayKey = std::tuple<uint64_t, int32_t, int32_t, int32_t, int32_t>;  // Step, dp, tp, micro-batch, stage.

  const TraceSlice& slice(SliceAt at) const { return traces_[at.trace].slices[at.slice]; }

  void note(SliceAt at) {
    const RankTrace& trace = traces_[at.trace];
    const TraceSlice& one = slice(at);
    const auto lane = trace.lanes.find(one.lane);
    const uint32_t group = lane == trace.lanes.end() ? 0 : lane->second;
    if (one.sent >= 0) messages_[{trace.step, group, trace.rank, one.to, one.sent}].from = at;
    if (one.received >= 0) messages_[{trace.step, group, one.from, trace.rank, one.received}].to = at;
    if (one.met >= 0) {
      TraceLinks::Meeting& meeting = meetings_[{trace.step, group, one.met}];
      if (one.root >= 0 && one.root == trace.rank) meeting.root = meeting.members.size();
      meeting.members.push_back(at);
    }
    if (one.comm != 0 || one.stage < 0 || one.micro_batch < 0 || names_.text(one.category) != "forward") return;
    const auto [found, added] =
        ways_.try_emplace({trace.step, trace.dp, trace.tp, one.micro_batch, one.stage}, Stay{at, at});
    if (added) return;
    if (one.start < slice(found->second.first).start) found->second.first = at;
    if (one.start >= slice(found->second.last).start) found->second.last = at;
  }

  // Neighbours in the map's order are neighbours on the way.
  void add_hops(TraceLinks& links) const {
    for (auto stay = ways_.begin(); stay != ways_.end(); ++stay) {
      const auto next = std::next(stay);
      if (next == ways_.end()) return;
      auto behind = stay->first;
      ++std::get<4>(behind);
      if (next->first == behind && next->second.first.trace != stay->second.last.trace) {
        links.hops.push_back({stay->second.last, next->second.first});
      }
    }
  }

  const std::vector<RankTrace>& traces_;
  const TraceNames& names_;
  std::map<MessageKey, Ends> messages_;
  std::map<MeetingKey, TraceLinks::Meeting> meetings_;
  std::map<WayKey, Stay> ways_;
};

}  // namespace

TraceLinks find_links(const std::vector<RankTrace>& traces, const TraceNames& names) {
  return LinkFinder(traces, names).find();
}

}  // namespace telar::client
