#include "worker/parallel/schedule_passes.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/parallel/schedule_index.h"
#include "worker/parallel/schedule_walk.h"

namespace telar::parallel {
namespace {

// Places the actions of all ranks, and the transfers between them.
class Lowering {
 public:
  explicit Lowering(const Schedule& schedule)
      : schedule_(schedule),
        forward_done_(static_cast<size_t>(schedule.stages) * schedule.micro_batches),
        input_grad_done_(forward_done_.size()),
        head_(schedule.ranks) {
    result_.schedule = schedule;
    for (std::vector<Action>& actions : result_.schedule.actions) actions.clear();
  }

  absl::StatusOr<LoweredSchedule> run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        if (head_[rank] == schedule_.actions[rank].size()) continue;
        const Action& action = schedule_.actions[rank][head_[rank]];
        if (awaited(action)) continue;
        place(rank, action);
        ++head_[rank];
        progress = true;
      }
    }
    std::string stuck;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (head_[rank] == schedule_.actions[rank].size()) continue;
      const Action& action = schedule_.actions[rank][head_[rank]];
      absl::StrAppend(&stuck, stuck.empty() ? "" : "; ", "rank ", rank, ", ", to_text(action), " (entry ",
                      head_[rank] + 1, ") waits for ", to_text(*awaited(action)));
    }
    if (!stuck.empty()) return absl::FailedPreconditionError(absl::StrCat("schedule: deadlock: ", stuck));
    return std::move(result_);
  }

 private:
  size_t cell(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * schedule_.micro_batches + micro_batch;
  }

  // What keeps an action from being placed.
  std::optional<Action> awaited(const Action& action) const {
    const int m = action.micro_batch;
    if (action.kind == ActionKind::kForward && action.stage > 0 && !forward_done_[cell(action.stage - 1, m)]) {
      return Action{action.stage - 1, ActionKind::kForward, m};
    }
    if (!is_input_grad(action.kind)) return std::nullopt;
    if (!forward_done_[cell(action.stage, m)]) return Action{action.stage, ActionKind::kForward, m};
    if (action.stage + 1 < schedule_.stages && !input_grad_done_[cell(action.stage + 1, m)]) {
      return Action{action.stage + 1, action.kind, m};
    }
    return std::nullopt;
  }

  void place(int rank, const Action& action) {
    result_.schedule.actions[rank].push_back(action);
    if (action.kind == ActionKind::kForward) {
      forward_done_[cell(action.stage, action.micro_batch)] = true;
      if (action.stage + 1 < schedule_.stages) hand_over(rank, action, action.stage + 1);
    } else if (is_input_grad(action.kind)) {
      input_grad_done_[cell(action.stage, action.micro_batch)] = true;
      if (action.stage > 0) hand_over(rank, action, action.stage - 1);
    }
  }

  void hand_over(int rank, const Action& action, int to_stage) {
    const int to_rank = schedule_.rank_of_stage[to_stage];
    if (to_rank == rank) return;
    const bool forward = action.kind == ActionKind::kForward;
    const int m = action.micro_batch;
    std::vector<std::vector<Action>>& lists = result_.schedule.actions;
    lists[rank].push_back({action.stage, forward ? ActionKind::kSendForward : ActionKind::kSendBackward, m});
    lists[to_rank].push_back({to_stage, forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward, m});
    result_.transfers.push_back(
        {rank, to_rank, action.stage, forward ? Transfer::Direction::kForward : Transfer::Direction::kBackward, m});
  }

  const Schedule& schedule_;
  std::vector<bool> forward_done_;  // By stage and micro-batch.
  std::vector<bool> input_grad_done_;
  std::vector<size_t> head_;  // By rank.
  LoweredSchedule result_;
};

// The global order of a schedule that has its transfers: one in which blocking ranks run them.
absl::StatusOr<LoweredSchedule> order_of_lowered(const Schedule& schedule, const ScheduleIndex& index) {
  ScheduleWalk result = walk(schedule, index, QueueRule::kOnePerRank, [](const Action&) { return 0.0; });
  if (result.stuck.empty()) return LoweredSchedule{schedule, std::move(result.transfers)};
  return absl::FailedPreconditionError(absl::StrCat("schedule: deadlock: ", why_stuck(schedule, index, result)));
}

}  // namespace

absl::StatusOr<LoweredSchedule> lower(const Schedule& schedule) {
  const absl::Status status = check_shape(schedule);
  if (!status.ok()) return status;
  const ScheduleIndex index(schedule);
  return index.has_transfers() ? order_of_lowered(schedule, index) : Lowering(schedule).run();
}

Schedule merge_backward(const Schedule& schedule) {
  Schedule merged = schedule;
  for (std::vector<Action>& actions : merged.actions) {
    std::vector<Action> kept;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kWeightGrad && !kept.empty() &&
          kept.back() == Action{action.stage, ActionKind::kInputGrad, action.micro_batch}) {
        kept.back().kind = ActionKind::kBackward;
      } else {
        kept.push_back(action);
      }
    }
    actions = std::move(kept);
  }
  return merged;
}

}  // namespace telar::parallel
