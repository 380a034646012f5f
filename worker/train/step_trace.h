// Steps of a run that are timed op by op: those that the spec names, or that somebody wishes for while the run goes on,
// become traces in the run's folder (docs/formats/trace.md); of one in trace.account_every the account is told.
//
// A trace that cannot be had is told of and ends nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "telar/v1/rank.pb.h"
#include "worker/engine/op_timer.h"
#include "worker/engine/trace.h"
#include "worker/parallel/groups.h"
#include "worker/train/clock_offset.h"
#include "worker/train/replica.h"
#include "worker/train/trace_wishes.h"

namespace telar::train {

// Does nothing for other steps than those. Threads: the one that submits steps.
class StepTrace {
 public:
  struct Seams {
    const Clock* clock = nullptr;         // Of this host. None: the real one.
    ReferenceClock* reference = nullptr;  // What all ranks compare theirs with. None: the coordinator's.
    std::string wishes_path;              // Empty: nobody wishes anything.
  };
  // `groups` by engine::GroupId; must outlive it, as what the seams point to.
  StepTrace(const v1::RankPlan& plan, const parallel::Mesh& mesh, const std::vector<parallel::Group>& groups,
            Seams seams);

  // From here on steps can be observed, and accounts are taken: the run's steps begin behind `start_step`, the same on
  // all ranks.
  void observe_from(uint64_t start_step) { start_step_ = start_step; }
  // Before replica.submit_step() of step number `step`.
  absl::Status begin(uint64_t step, Replica& replica, backend::Device& device);
  struct Accounted {
    v1::StepAccount told;
    double waiting_share = 0;  // Of the device's time: engine::waiting_share().
  };
  // Behind replica.finish_step() of it: writes the file and logs the figures, or gives them; nothing of other steps.
  absl::StatusOr<std::optional<Accounted>> finish(uint64_t step, const Replica& replica);
  // What became of traces since the last call.
  std::vector<v1::TraceReport> take_reports() { return std::exchange(reports_, {}); }

 private:
  bool is_traced(uint64_t step) const { return traced_.contains(step); }
  bool is_accounted(uint64_t step) const;
  // Takes new wishes; those for steps before `next` come too late.
  void take_wishes(uint64_t next);
  void set_clock(engine::TraceClock& clock);
  void write(uint64_t next);
  absl::StatusOr<uint64_t> write_file() const;
  void report(uint64_t step, const absl::StatusOr<uint64_t>& bytes, uint64_t at_step);

  const v1::RankPlan& plan_;
  const parallel::Mesh mesh_;
  const std::vector<parallel::Group>& groups_;
  const Clock& clock_;
  std::unique_ptr<ReferenceClock> coordinator_;  // Where nobody gave another.
  ReferenceClock* const reference_;              // Null: the rank is alone.
  TraceWishes wishes_;
  std::optional<uint64_t> start_step_;
  std::set<uint64_t> traced_;                                     // By the spec and by wishes.
  std::map<uint64_t, std::unique_ptr<engine::OpTimer>> running_;  // By step.
  std::vector<std::unique_ptr<engine::OpTimer>> idle_;            // A device's events are made once, not a step.
  std::optional<engine::Trace> trace_;                            // Of the run's program; times of the last one.
  std::vector<v1::TraceReport> reports_;
};

}  // namespace telar::train
