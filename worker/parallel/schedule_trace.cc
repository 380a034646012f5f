// to_chrome_trace of schedule_simulator.h.
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/parallel/schedule_simulator.h"

namespace telar::parallel {
namespace {

const char* category(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kInputGrad:
      return "input_grad";
    default:
      return "weight_grad";
  }
}

class Trace {
 public:
  void name_process(int rank) {
    add(absl::StrFormat(R"({"name":"process_name","ph":"M","pid":%d,"args":{"name":"pipeline rank %d"}})", rank, rank));
    name_thread(rank, 0, "compute");
  }

  void event(int rank, int thread, const std::string& name, const char* kind, double start, double end) {
    if (thread > 0 && threads_.insert({rank, thread}).second) {
      name_thread(rank, thread, absl::StrCat("link with rank ", thread - 1));
    }
    add(absl::StrFormat(R"({"name":"%s","cat":"%s","ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f})", name, kind, rank,
                        thread, start * 1e6, (end - start) * 1e6));
  }

  std::string finish() { return absl::StrCat("{\"traceEvents\":[\n", events_, "\n],\"displayTimeUnit\":\"ms\"}\n"); }

 private:
  void name_thread(int rank, int thread, const std::string& name) {
    add(absl::StrFormat(R"({"name":"thread_name","ph":"M","pid":%d,"tid":%d,"args":{"name":"%s"}})", rank, thread,
                        name));
  }

  void add(const std::string& event) { absl::StrAppend(&events_, events_.empty() ? "" : ",\n", event); }

  std::string events_;
  std::set<std::pair<int, int>> threads_;  // Named links, by rank and thread.
};

}  // namespace

std::string to_chrome_trace(const ScheduleForecast& forecast) {
  Trace trace;
  for (size_t rank = 0; rank < forecast.ranks.size(); ++rank) trace.name_process(static_cast<int>(rank));
  for (const TimedAction& timed : forecast.actions) {
    trace.event(timed.rank, 0, to_text(timed.action), category(timed.action.kind), timed.start, timed.end);
  }
  for (const TimedTransfer& timed : forecast.transfers) {
    const Transfer& t = timed.transfer;
    const bool forward = t.direction == Transfer::Direction::kForward;
    const Action send = {t.stage, forward ? ActionKind::kSendForward : ActionKind::kSendBackward, t.micro_batch};
    const Action recv = {t.stage + (forward ? 1 : -1), forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward,
                         t.micro_batch};
    trace.event(t.from_rank, 1 + t.to_rank, to_text(send), "send", timed.start, timed.end);
    trace.event(t.to_rank, 1 + t.from_rank, to_text(recv), "recv", timed.start, timed.end);
  }
  return trace.finish();
}

}  // namespace telar::parallel
