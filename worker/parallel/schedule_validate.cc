// The validator of schedule_passes.h.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/parallel/schedule_index.h"
#include "worker/parallel/schedule_passes.h"
#include "worker/parallel/schedule_walk.h"

namespace telar::parallel {
namespace {

class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule), index_(schedule) {}

  std::vector<ScheduleProblem> run(const ScheduleLimits& limits) {
    check_places();
    check_counts();
    check_order();
    check_reduce_grad();
    check_transfers();
    if (problems_.empty()) check_progress();
    check_memory(limits);
    return std::move(problems_);
  }

 private:
  void add(int rank, int entry, const Action& action, std::string rule) {
    problems_.push_back({rank, entry, to_text(action), std::move(rule)});
  }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      for (size_t i = 0; i < schedule_.actions[rank].size(); ++i) {
        visit(rank, static_cast<int>(i), schedule_.actions[rank][i]);
      }
    }
  }

  void check_places() {
    for_each([&](int rank, int entry, const Action& action) {
      const int owner = schedule_.rank_of_stage[action.stage];
      if (owner == rank) return;
      add(rank, entry, action,
          absl::StrCat("stage ", action.stage, " is on rank ", owner, "; a stage lives on one rank"));
    });
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      if (std::count(schedule_.rank_of_stage.begin(), schedule_.rank_of_stage.end(), rank) == 0) {
        problems_.push_back({rank, -1, "", absl::StrCat("has none of the ", schedule_.stages, " stages")});
      }
    }
  }

  void check_counts() {
    std::vector<int> counts(size_t{4} * schedule_.stages * schedule_.micro_batches);
    const auto count = [&](ActionKind kind, int stage, int m) -> int& {
      return counts[(static_cast<size_t>(kind) * schedule_.stages + stage) * schedule_.micro_batches + m];
    };
    for_each([&](int, int, const Action& action) {
      if (is_compute(action.kind)) ++count(action.kind, action.stage, action.micro_batch);
    });
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (int m = 0; m < schedule_.micro_batches; ++m) {
        const int forwards = count(ActionKind::kForward, stage, m);
        const int whole = count(ActionKind::kBackward, stage, m);
        const int input = count(ActionKind::kInputGrad, stage, m);
        const int weight = count(ActionKind::kWeightGrad, stage, m);
        if (forwards != 1) wrong_count({stage, ActionKind::kForward, m}, absl::StrCat(forwards, " F; it must have 1"));
        if (whole + input != 1 || whole + weight != 1) {
          wrong_count({stage, ActionKind::kBackward, m},
                      absl::StrCat(whole, " B, ", input, " I and ", weight, " W; it must have 1 B, or 1 I and 1 W"));
        }
      }
    }
  }

  void wrong_count(const Action& action, const std::string& counts) {
    add(schedule_.rank_of_stage[action.stage], index_.find(action.kind, action.stage, action.micro_batch), action,
        absl::StrCat("stage ", action.stage, ", micro-batch ", action.micro_batch, " has ", counts));
  }

  // What check_counts has found missing is not told again.
  void check_order() {
    for_each([&](int rank, int entry, const Action& action) {
      if (schedule_.rank_of_stage[action.stage] != rank) return;
      for (const ScheduleIndex::Need& need : index_.needs(action)) {
        const bool received = is_transfer(need.action.kind);
        if (need.entry > entry) {
          add(rank, entry, action,
              absl::StrCat("comes before ", to_text(schedule_.actions[rank][need.entry]), " (entry ", need.entry + 1,
                           "), which it needs"));
        } else if (need.entry < 0 && received && index_.has_transfers()) {
          add(rank, entry, action, absl::StrCat("needs ", to_text(need.action), ", which is not in the list"));
        }
      }
    });
  }

  void check_reduce_grad() {
    std::vector<int> last(schedule_.stages, -1);
    for_each([&](int, int entry, const Action& action) {
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGrad) last[action.stage] = entry;
    });
    for_each([&](int rank, int entry, const Action& action) {
      if (action.kind != ActionKind::kReduceGrad || entry > last[action.stage]) return;
      add(rank, entry, action,
          absl::StrCat("comes before the last weight gradient of its stage, entry ", last[action.stage] + 1));
    });
  }

  void check_transfers() {
    for_each([&](int rank, int entry, const Action& action) {
      if (!is_transfer(action.kind) || schedule_.rank_of_stage[action.stage] != rank) return;
      const int other = index_.other_stage(action);
      if (other < 0)
        return add(rank, entry, action, absl::StrCat("goes beyond the end of the ", schedule_.stages, " stages"));
      if (schedule_.rank_of_stage[other] == rank) {
        return add(rank, entry, action, absl::StrCat("stages ", action.stage, " and ", other, " are on one rank"));
      }
      const int first = index_.find(action.kind, action.stage, action.micro_batch);
      if (first != entry) return add(rank, entry, action, absl::StrCat("is there twice, first as entry ", first + 1));
      const ScheduleIndex::Need partner = index_.partner(action);
      if (partner.entry < 0) {
        add(rank, entry, action,
            absl::StrCat("has no ", to_text(partner.action), " on rank ", schedule_.rank_of_stage[other]));
      }
    });
  }

  void check_progress() {
    if (index_.has_transfers()) return check_queues(schedule_, index_);
    const absl::StatusOr<LoweredSchedule> lowered = lower(schedule_);
    if (!lowered.ok()) {
      problems_.push_back({-1, -1, "", std::string(lowered.status().message())});
      return;
    }
    check_queues(lowered->schedule, ScheduleIndex(lowered->schedule));
  }

  void check_queues(const Schedule& lowered, const ScheduleIndex& index) {
    for (const QueueRule rule : {QueueRule::kOnePerRank, QueueRule::kOnePerPeer}) {
      const ScheduleWalk result = walk(lowered, index, rule, [](const Action&) { return 0.0; });
      const char* const queues = rule == QueueRule::kOnePerRank ? "rank" : "pair of ranks";
      for (const SchedulePosition& at : result.stuck) {
        add(at.rank, at.entry, lowered.actions[at.rank][at.entry],
            absl::StrCat("deadlock with one queue a ", queues, ": ", why_stuck(lowered, index, result, at)));
      }
    }
  }

  void check_memory(const ScheduleLimits& limits) {
    const auto check = [&](int64_t limit, const std::vector<ActivationPeak>& peaks, const char* what) {
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        if (limit <= 0 || peaks[rank].value <= limit) continue;
        add(rank, peaks[rank].entry, schedule_.actions[rank][peaks[rank].entry],
            absl::StrCat(peaks[rank].value, " ", what, " are alive, more than the limit of ", limit));
      }
    };
    check(limits.until_input_grad, peak_until_input_grad(schedule_), "stage activations until I");
    check(limits.until_weight_grad, peak_until_weight_grad(schedule_), "stage activations until W");
    if (limits.bytes <= 0) return;
    if (limits.activations.size() != static_cast<size_t>(schedule_.stages)) {
      problems_.push_back({-1, -1, "",
                           absl::StrCat("limits: activation bytes of ", limits.activations.size(), " stages for ",
                                        schedule_.stages, " stages")});
      return;
    }
    check(limits.bytes, peak_activations(schedule_, limits.activations), "bytes of activations");
  }

  const Schedule& schedule_;
  const ScheduleIndex index_;
  std::vector<ScheduleProblem> problems_;
};

}  // namespace

std::string to_text(const ScheduleProblem& problem) {
  if (problem.rank < 0) return problem.rule;
  std::string text = absl::StrCat("rank ", problem.rank);
  if (!problem.action.empty()) absl::StrAppend(&text, ", ", problem.action);
  if (problem.entry >= 0) absl::StrAppend(&text, " (entry ", problem.entry + 1, ")");
  return absl::StrCat(text, ": ", problem.rule);
}

std::vector<ScheduleProblem> find_problems(const Schedule& schedule, const ScheduleLimits& limits) {
  const absl::Status status = check_shape(schedule);
  if (!status.ok()) return {{-1, -1, "", std::string(status.message())}};
  return Validator(schedule).run(limits);
}

absl::Status validate(const Schedule& schedule, const ScheduleLimits& limits) {
  constexpr size_t kShown = 20;
  const std::vector<ScheduleProblem> problems = find_problems(schedule, limits);
  if (problems.empty()) return absl::OkStatus();
  std::string text = "schedule: ";
  for (size_t i = 0; i < std::min(problems.size(), kShown); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", to_text(problems[i]));
  }
  if (problems.size() > kShown) absl::StrAppend(&text, "; and ", problems.size() - kShown, " more");
  return absl::InvalidArgumentError(text);
}

}  // namespace telar::parallel
