#include "worker/parallel/schedule_index.h"

namespace telar::parallel {
namespace {

constexpr size_t kIndexedKinds = static_cast<size_t>(ActionKind::kRecvBackward) + 1;

}  // namespace

ScheduleIndex::ScheduleIndex(const Schedule& schedule)
    : schedule_(schedule), entries_(kIndexedKinds * schedule.stages * schedule.micro_batches, -1) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const std::vector<Action>& actions = schedule.actions[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      has_transfers_ = has_transfers_ || is_transfer(action.kind);
      if (!is_compute(action.kind) && !is_transfer(action.kind)) continue;
      if (schedule.rank_of_stage[action.stage] != rank) continue;
      int& entry = entries_[cell(action.kind, action.stage, action.micro_batch)];
      if (entry < 0) entry = static_cast<int>(i);
    }
  }
}

size_t ScheduleIndex::cell(ActionKind kind, int stage, int micro_batch) const {
  return (static_cast<size_t>(kind) * schedule_.stages + stage) * schedule_.micro_batches + micro_batch;
}

int ScheduleIndex::find(ActionKind kind, int stage, int micro_batch) const {
  return entries_[cell(kind, stage, micro_batch)];
}

int ScheduleIndex::find_input_grad(int stage, int micro_batch) const {
  const int whole = find(ActionKind::kBackward, stage, micro_batch);
  return whole >= 0 ? whole : find(ActionKind::kInputGrad, stage, micro_batch);
}

ScheduleIndex::Need ScheduleIndex::arrival(const Action& action, int neighbour) const {
  const bool forward = action.kind == ActionKind::kForward;
  const int m = action.micro_batch;
  if (schedule_.rank_of_stage[neighbour] != schedule_.rank_of_stage[action.stage]) {
    const ActionKind kind = forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward;
    return {{action.stage, kind, m}, find(kind, action.stage, m)};
  }
  if (forward) return {{neighbour, ActionKind::kForward, m}, find(ActionKind::kForward, neighbour, m)};
  return {{neighbour, action.kind, m}, find_input_grad(neighbour, m)};
}

ScheduleIndex::Needs ScheduleIndex::needs(const Action& action) const {
  const int stage = action.stage;
  const int m = action.micro_batch;
  Needs needs;
  switch (action.kind) {
    case ActionKind::kForward:
      if (stage > 0) needs.add(arrival(action, stage - 1));
      break;
    case ActionKind::kBackward:
    case ActionKind::kInputGrad:
      needs.add({{stage, ActionKind::kForward, m}, find(ActionKind::kForward, stage, m)});
      if (stage + 1 < schedule_.stages) needs.add(arrival(action, stage + 1));
      break;
    case ActionKind::kWeightGrad:
      needs.add({{stage, ActionKind::kInputGrad, m}, find(ActionKind::kInputGrad, stage, m)});
      break;
    case ActionKind::kSendForward:
      needs.add({{stage, ActionKind::kForward, m}, find(ActionKind::kForward, stage, m)});
      break;
    case ActionKind::kSendBackward:
      needs.add({{stage, ActionKind::kBackward, m}, find_input_grad(stage, m)});
      break;
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
      break;
  }
  return needs;
}

int ScheduleIndex::other_stage(const Action& transfer) const {
  const bool up = transfer.kind == ActionKind::kSendForward || transfer.kind == ActionKind::kRecvBackward;
  const int stage = transfer.stage + (up ? 1 : -1);
  return stage < schedule_.stages ? stage : -1;
}

ScheduleIndex::Need ScheduleIndex::partner(const Action& transfer) const {
  ActionKind kind = ActionKind::kSendForward;
  if (transfer.kind == ActionKind::kSendForward) kind = ActionKind::kRecvForward;
  if (transfer.kind == ActionKind::kSendBackward) kind = ActionKind::kRecvBackward;
  if (transfer.kind == ActionKind::kRecvBackward) kind = ActionKind::kSendBackward;
  const int stage = other_stage(transfer);
  return {{stage, kind, transfer.micro_batch}, find(kind, stage, transfer.micro_batch)};
}

}  // namespace telar::parallel
