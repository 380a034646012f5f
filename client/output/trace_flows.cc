#include "client/output/trace_flows.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace telar::client {
namespace {

class FlowFinder {
 public:
  FlowFinder(const std::vector<RankTrace>& traces, const TraceNames& names, const TraceClocks& clocks)
      : traces_(traces), names_(names), clocks_(clocks) {}

  // From where a message is sent to where it is there.
  void add_message(const TraceLinks::Pair& message) {
    add({"message", names_.text(slice(message.from).name), {at_start(message.from), at_end(message.to)}});
  }
  // From one who begins to the next.
  void add_meeting(const TraceLinks::Meeting& meeting) {
    TraceFlow flow{"collective", names_.text(slice(meeting.members[0]).comm), {}};
    for (const SliceAt& at : meeting.members) flow.stops.push_back(at_start(at));
    std::stable_sort(flow.stops.begin(), flow.stops.end(),
                     [](const TraceFlow::Stop& a, const TraceFlow::Stop& b) { return a.nanoseconds < b.nanoseconds; });
    add(std::move(flow));
  }
  void add_hop(const TraceLinks::Pair& hop) {
    add({"micro-batch",
         absl::StrCat("micro-batch ", slice(hop.from).micro_batch),
         {at_start(hop.from), at_start(hop.to)}});
  }
  TraceFlows take() { return std::move(found_); }

 private:
  const TraceSlice& slice(SliceAt at) const { return traces_[at.trace].slices[at.slice]; }
  SliceSpan span(SliceAt at) const { return span_of(slice(at), clocks_.start[at.trace]); }
  TraceFlow::Stop at_start(SliceAt at) const { return {at, span(at).start}; }
  TraceFlow::Stop at_end(SliceAt at) const { return {at, span(at).stop - 1}; }

  void add(TraceFlow flow) {
    for (size_t i = 0; i < flow.stops.size(); ++i) {
      const TraceFlow::Stop& one = flow.stops[i];
      const bool ordered = i == 0 || flow.stops[i - 1].nanoseconds <= one.nanoseconds;
      const bool inside = span(one.at).start <= one.nanoseconds && one.nanoseconds < span(one.at).stop;
      if (ordered && inside) continue;
      ++found_.left_out;
      return;
    }
    found_.flows.push_back(std::move(flow));
  }

  const std::vector<RankTrace>& traces_;
  const TraceNames& names_;
  const TraceClocks& clocks_;
  TraceFlows found_;
};

}  // namespace

SliceSpan span_of(const TraceSlice& slice, double trace_start) {
  const int64_t begin = std::llround(1e9 * trace_start);
  return {begin + slice.start, begin + slice.stop};
}

TraceFlows find_flows(const std::vector<RankTrace>& traces, const TraceNames& names, const TraceLinks& links,
                      const TraceClocks& clocks) {
  FlowFinder finder(traces, names, clocks);
  for (const TraceLinks::Pair& message : links.messages) finder.add_message(message);
  for (const TraceLinks::Meeting& meeting : links.meetings) finder.add_meeting(meeting);
  for (const TraceLinks::Pair& hop : links.hops) finder.add_hop(hop);
  return finder.take();
}

}  // namespace telar::client
