#include "worker/parallel/schedule_simulator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/parallel/schedule_index.h"
#include "worker/parallel/schedule_passes.h"
#include "worker/parallel/schedule_walk.h"

namespace telar::parallel {
namespace {

absl::Status check_costs(const Schedule& schedule, const ScheduleCosts& costs) {
  const auto stages = static_cast<size_t>(schedule.stages);
  if (costs.stages.size() != stages || (!costs.activations.empty() && costs.activations.size() != stages)) {
    return absl::InvalidArgumentError(absl::StrCat("costs: times of ", costs.stages.size(), " and activations of ",
                                                   costs.activations.size(), " stages for ", schedule.stages,
                                                   " stages"));
  }
  for (size_t s = 0; s < stages; ++s) {
    const StageCost& cost = costs.stages[s];
    if (cost.forward >= 0 && cost.input_grad >= 0 && cost.weight_grad >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("costs of stage ", s, ": F ", cost.forward, " s, I ",
                                                   cost.input_grad, " s, W ", cost.weight_grad,
                                                   " s: none may be negative"));
  }
  if (costs.latency >= 0 && costs.transfer_bytes >= 0 && costs.bytes_per_second > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("costs of a transfer: latency ", costs.latency, " s, ",
                                                 costs.transfer_bytes, " bytes at ", costs.bytes_per_second,
                                                 " bytes/s: none may be negative, nor the last 0"));
}

double seconds_of(const ScheduleCosts& costs, const Action& action) {
  const StageCost& cost = costs.stages[action.stage];
  switch (action.kind) {
    case ActionKind::kForward:
      return cost.forward;
    case ActionKind::kBackward:
      return cost.input_grad + cost.weight_grad;
    case ActionKind::kInputGrad:
      return cost.input_grad;
    case ActionKind::kWeightGrad:
      return cost.weight_grad;
    default:
      return is_transfer(action.kind) ? costs.latency + costs.transfer_bytes / costs.bytes_per_second : 0;
  }
}

double overlap(double begin, double end, double first, double last) {
  return std::max(0.0, std::min(end, last) - std::max(begin, first));
}

// Reads the figures off a walk that came to its end.
class Reader {
 public:
  Reader(const Schedule& lowered, const ScheduleIndex& index, const ScheduleWalk& walk)
      : lowered_(lowered), index_(index), walk_(walk) {}

  ScheduleForecast read() {
    for (int rank = 0; rank < lowered_.ranks; ++rank) read_actions(rank);
    for (const TimedAction& timed : forecast_.actions) {
      forecast_.makespan = std::max(forecast_.makespan, timed.end);
    }
    size_t first = 0;
    for (int rank = 0; rank < lowered_.ranks; ++rank) {
      size_t end = first;
      while (end < forecast_.actions.size() && forecast_.actions[end].rank == rank) ++end;
      forecast_.ranks.push_back(read_rank({forecast_.actions.begin() + first, forecast_.actions.begin() + end}));
      first = end;
    }
    if (forecast_.makespan > 0) {
      double idle = 0;
      for (const RankForecast& rank : forecast_.ranks) idle += rank.idle;
      forecast_.bubble_fraction = idle / (forecast_.makespan * lowered_.ranks);
    }
    read_transfers();
    return std::move(forecast_);
  }

 private:
  void read_actions(int rank) {
    for (size_t i = 0; i < lowered_.actions[rank].size(); ++i) {
      const Action& action = lowered_.actions[rank][i];
      const ActionTime& time = walk_.times[rank][i];
      if (is_compute(action.kind)) forecast_.actions.push_back({rank, action, time.start, time.end});
    }
  }

  RankForecast read_rank(const std::vector<TimedAction>& actions) const {
    RankForecast result;
    double first_backward = forecast_.makespan;
    double last_forward = 0;
    for (const TimedAction& timed : actions) {
      result.busy += timed.end - timed.start;
      if (timed.action.kind == ActionKind::kForward) last_forward = std::max(last_forward, timed.end);
      if (is_input_grad(timed.action.kind)) first_backward = std::min(first_backward, timed.start);
    }
    last_forward = std::max(last_forward, first_backward);
    const auto idle = [&](double begin, double end) {
      result.warmup_idle += overlap(begin, end, 0, first_backward);
      result.steady_idle += overlap(begin, end, first_backward, last_forward);
      result.cooldown_idle += overlap(begin, end, last_forward, forecast_.makespan);
    };
    double last = 0;
    for (const TimedAction& timed : actions) {
      idle(last, timed.start);
      result.exposed_communication += exposed(timed, last);
      last = timed.end;
    }
    idle(last, forecast_.makespan);
    result.idle = forecast_.makespan - result.busy;
    if (!actions.empty()) result.own_idle = last - actions.front().start - result.busy;
    return result;
  }

  // How long before `timed` its rank, free since `free`, waited for what had been computed.
  double exposed(const TimedAction& timed, double free) const {
    double ready = timed.start;
    for (const ScheduleIndex::Need& need : index_.needs(timed.action)) {
      if (!is_transfer(need.action.kind) || walk_.times[timed.rank][need.entry].end <= free) continue;
      const Action send = index_.partner(need.action).action;
      const int from = lowered_.rank_of_stage[send.stage];
      ready = walk_.times[from][index_.needs(send).begin()->entry].end;
    }
    return std::max(0.0, timed.start - std::max(free, ready));
  }

  void read_transfers() {
    for (const Transfer& transfer : walk_.transfers) {
      const bool forward = transfer.direction == Transfer::Direction::kForward;
      const ActionKind kind = forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
      const int entry = index_.find(kind, transfer.stage, transfer.micro_batch);
      const ActionTime& time = walk_.times[transfer.from_rank][entry];
      forecast_.transfers.push_back({transfer, time.start, time.end});
    }
    std::stable_sort(forecast_.transfers.begin(), forecast_.transfers.end(),
                     [](const TimedTransfer& a, const TimedTransfer& b) { return a.start < b.start; });
  }

  const Schedule& lowered_;
  const ScheduleIndex& index_;
  const ScheduleWalk& walk_;
  ScheduleForecast forecast_;
};

void add_memory(const Schedule& schedule, const ScheduleCosts& costs, ScheduleForecast& forecast) {
  const std::vector<ActivationPeak> input = peak_until_input_grad(schedule);
  const std::vector<ActivationPeak> weight = peak_until_weight_grad(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    forecast.ranks[rank].peak_until_input_grad = static_cast<int>(input[rank].value);
    forecast.ranks[rank].peak_until_weight_grad = static_cast<int>(weight[rank].value);
  }
  if (costs.activations.empty()) return;
  const std::vector<ActivationPeak> bytes = peak_activations(schedule, costs.activations);
  for (int rank = 0; rank < schedule.ranks; ++rank) forecast.ranks[rank].peak_bytes = bytes[rank].value;
}

}  // namespace

absl::StatusOr<ScheduleForecast> simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  absl::StatusOr<LoweredSchedule> lowered = lower(schedule);
  if (!lowered.ok()) return lowered.status();
  const absl::Status status = check_costs(schedule, costs);
  if (!status.ok()) return status;
  const ScheduleIndex index(lowered->schedule);
  const ScheduleWalk result = walk(lowered->schedule, index, QueueRule::kOnePerPeer,
                                   [&](const Action& action) { return seconds_of(costs, action); });
  if (!result.stuck.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("schedule: deadlock: ", why_stuck(lowered->schedule, index, result)));
  }
  ScheduleForecast forecast = Reader(lowered->schedule, index, result).read();
  add_memory(schedule, costs, forecast);
  return forecast;
}

}  // namespace telar::parallel
