#include "worker/parallel/schedule_generators.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace telar::parallel {
namespace {

constexpr int64_t kMaxActions = int64_t{1} << 26;

// A stage and a micro-batch, for which an order is being made.
struct Cell {
  int stage;
  int micro_batch;
};

// Appends actions of one rank.
class Line {
 public:
  Line(Schedule& schedule, int rank) : actions_(schedule.actions[rank]) {}
  void add(ActionKind kind, Cell cell) { actions_.push_back({cell.stage, kind, cell.micro_batch}); }

 private:
  std::vector<Action>& actions_;
};

Schedule empty_schedule(int ranks, int virtual_stages, int micro_batches) {
  Schedule schedule{ranks, ranks * virtual_stages, micro_batches, {}, {}};
  for (int stage = 0; stage < schedule.stages; ++stage) schedule.rank_of_stage.push_back(stage % ranks);
  schedule.actions.resize(ranks);
  return schedule;
}

// All forwards, then all backwards, one stage after the other; with several stages a rank also known as looped
// breadth-first.
Schedule gpipe(int ranks, int virtual_stages, int micro_batches) {
  Schedule schedule = empty_schedule(ranks, virtual_stages, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    Line line(schedule, rank);
    for (int stage = rank; stage < schedule.stages; stage += ranks) {
      for (int m = 0; m < micro_batches; ++m) line.add(ActionKind::kForward, {stage, m});
    }
    for (int stage = schedule.stages - ranks + rank; stage >= 0; stage -= ranks) {
      for (int m = 0; m < micro_batches; ++m) line.add(ActionKind::kBackward, {stage, m});
    }
  }
  return schedule;
}

// `warmup` forwards, then a forward and a backward in turn, then the backwards that are left.
void one_forward_one_backward(const std::vector<Cell>& forwards, const std::vector<Cell>& backwards, int warmup,
                              Line line) {
  const size_t ahead = std::min(static_cast<size_t>(warmup), forwards.size());
  for (size_t i = 0; i < ahead; ++i) line.add(ActionKind::kForward, forwards[i]);
  for (size_t i = 0; i < backwards.size(); ++i) {
    if (i + ahead < forwards.size()) line.add(ActionKind::kForward, forwards[i + ahead]);
    line.add(ActionKind::kBackward, backwards[i]);
  }
}

// Groups of N micro-batches pass through a rank's stages from the first to the last, and back from the last to the
// first. With one stage a rank the warm-up is as deep as the pipeline is below the rank; with more it is a group for
// each stage but the last, and twice that depth, because the first forward of the last stage comes around from rank 0.
Schedule one_f_one_b(int ranks, int virtual_stages, int micro_batches) {
  Schedule schedule = empty_schedule(ranks, virtual_stages, micro_batches);
  const int group = interleaved_group(ranks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Cell> forwards;
    std::vector<Cell> backwards;
    for (int first = 0; first < micro_batches; first += group) {
      const int end = std::min(first + group, micro_batches);
      for (int chunk = 0; chunk < virtual_stages; ++chunk) {
        for (int m = first; m < end; ++m) {
          forwards.push_back({chunk * ranks + rank, m});
          backwards.push_back({(virtual_stages - 1 - chunk) * ranks + rank, m});
        }
      }
    }
    const int below = ranks - 1 - rank;
    const int warmup = virtual_stages == 1 ? below : (virtual_stages - 1) * group + 2 * below;
    one_forward_one_backward(forwards, backwards, warmup, Line(schedule, rank));
  }
  return schedule;
}

// 1F1B with the backward split. The weight gradients of rank r lag r micro-batches behind its input gradients: they are
// put off for as long as memory allows that every rank holds what rank 0 holds, and fill what would be bubbles.
Schedule zb_h1(int ranks, int micro_batches) {
  Schedule schedule = empty_schedule(ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    Line line(schedule, rank);
    const int warmup = std::min(ranks - 1 - rank, micro_batches);
    for (int m = 0; m < warmup; ++m) line.add(ActionKind::kForward, {rank, m});
    for (int m = 0; m < micro_batches; ++m) {
      if (m + warmup < micro_batches) line.add(ActionKind::kForward, {rank, m + warmup});
      line.add(ActionKind::kInputGrad, {rank, m});
      if (m >= rank) line.add(ActionKind::kWeightGrad, {rank, m - rank});
    }
    for (int m = std::max(0, micro_batches - rank); m < micro_batches; ++m)
      line.add(ActionKind::kWeightGrad, {rank, m});
  }
  return schedule;
}

// One rank's list of zb-v. Each of the rank's two stages takes its forwards, input gradients and weight gradients in
// the order of the micro-batches, so a list is told by kinds and stages alone. Micro-batches that the full pipeline has
// and we have not are left out.
class VLine {
 public:
  VLine(Schedule& schedule, int rank) : schedule_(schedule), line_(schedule, rank) {
    stage_[kDown] = rank;
    stage_[kUp] = schedule.stages - 1 - rank;
  }
  enum Leg { kDown = 0, kUp = 1 };  // Of the V: its stages before and after the turn at the last rank.
  int forwards(Leg leg) const { return next_[leg][0]; }
  int input_grads(Leg leg) const { return next_[leg][1]; }
  int weight_grads(Leg leg) const { return next_[leg][2]; }
  void forward(Leg leg) { add(ActionKind::kForward, leg, next_[leg][0]++); }
  void input_grad(Leg leg) { add(ActionKind::kInputGrad, leg, next_[leg][1]++); }
  void weight_grad(Leg leg) { add(ActionKind::kWeightGrad, leg, next_[leg][2]++); }
  void backward(Leg leg) {
    input_grad(leg);
    weight_grad(leg);
  }

 private:
  void add(ActionKind kind, Leg leg, int micro_batch) {
    if (micro_batch < schedule_.micro_batches) line_.add(kind, {stage_[leg], micro_batch});
  }

  const Schedule& schedule_;
  Line line_;
  int stage_[2];
  int next_[2][3] = {};  // By leg: forwards, input gradients and weight gradients so far.
};

// The phases of PyTorch's zero-bubble V schedule. Each rank fills its 2p half stages of memory, keeps them full with
// two forwards and two backwards a round, and at the end puts weight gradients off, so that input gradients get to the
// ranks above as early as they can. For fewer than 2p-1 micro-batches PyTorch takes the list of 2p-1 and leaves out
// what is not there; we go to the last phase as soon as there is nothing more to fill with, which takes up to a tenth
// less time and no more memory.
void zb_v_line(VLine line, int ranks, int rank, int micro_batches) {
  const int below = ranks - rank;  // With this one.
  for (int i = 0; i < 2 * below - 1; ++i) line.forward(VLine::kDown);
  for (int i = 0; i < rank; ++i) {
    line.forward(VLine::kUp);
    line.forward(VLine::kDown);
  }
  for (int i = 0; i < below; ++i) {
    line.forward(VLine::kUp);
    line.backward(VLine::kUp);
  }
  while (line.forwards(VLine::kUp) < micro_batches) {
    if (line.forwards(VLine::kDown) < micro_batches) line.forward(VLine::kDown);
    line.backward(VLine::kDown);
    line.forward(VLine::kUp);
    line.backward(VLine::kUp);
  }
  for (int i = 0; i < rank; ++i) {
    line.input_grad(VLine::kDown);
    line.input_grad(VLine::kUp);
  }
  for (int i = 0; i < below; ++i) line.backward(VLine::kDown);
  for (const VLine::Leg leg : {VLine::kUp, VLine::kDown}) {
    while (line.weight_grads(leg) < line.input_grads(leg)) line.weight_grad(leg);
  }
}

Schedule zb_v(int ranks, int micro_batches) {
  Schedule schedule = empty_schedule(ranks, 2, micro_batches);
  for (int stage = ranks; stage < schedule.stages; ++stage) {
    schedule.rank_of_stage[stage] = schedule.stages - 1 - stage;
  }
  for (int rank = 0; rank < ranks; ++rank) zb_v_line(VLine(schedule, rank), ranks, rank, micro_batches);
  return schedule;
}

absl::Status check_size(int ranks, int virtual_stages, int micro_batches) {
  if (ranks < 1 || virtual_stages < 1 || micro_batches < 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: ", ranks, " ranks x ", virtual_stages,
                                                   " stages a rank x ", micro_batches,
                                                   " micro-batches: each must be at least 1"));
  }
  const int64_t stages = int64_t{ranks} * virtual_stages;
  if (stages > kMaxActions || stages * micro_batches * 3 > kMaxActions) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule: ", ranks, " ranks x ", virtual_stages, " stages a rank x ", micro_batches,
                     " micro-batches x 3 actions are ", "more than the ", kMaxActions, " that a schedule may have"));
  }
  return absl::OkStatus();
}

// Schedules that fix the number of stages a rank.
absl::Status check_stages(std::string_view name, int wanted, int ranks, int virtual_stages) {
  if (virtual_stages == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("schedule ", std::string(name), ": ", ranks, " ranks x ",
                                                 virtual_stages, " stages a rank = ", int64_t{ranks} * virtual_stages,
                                                 " stages, but it has ", wanted, " a rank, ", int64_t{ranks} * wanted,
                                                 " in all", wanted == 1 ? "; interleaved takes any number" : ""));
}

}  // namespace

int interleaved_group(int ranks, int micro_batches) {
  if (micro_batches <= ranks) return micro_batches;
  int group = ranks;
  while (micro_batches % group != 0 && micro_batches % group < ranks) ++group;
  return group;
}

absl::StatusOr<Schedule> make_schedule(std::string_view name, int ranks, int virtual_stages, int micro_batches) {
  absl::Status status = check_size(ranks, virtual_stages, micro_batches);
  if (!status.ok()) return status;
  if (name == "gpipe") return gpipe(ranks, virtual_stages, micro_batches);
  if (name == "interleaved") return one_f_one_b(ranks, virtual_stages, micro_batches);
  if (name == "1f1b" || name == "zb-h1") {
    status = check_stages(name, 1, ranks, virtual_stages);
    if (!status.ok()) return status;
    return name == "1f1b" ? one_f_one_b(ranks, 1, micro_batches) : zb_h1(ranks, micro_batches);
  }
  if (name == "zb-v") {
    status = check_stages(name, 2, ranks, virtual_stages);
    if (!status.ok()) return status;
    return zb_v(ranks, micro_batches);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("schedule: '", std::string(name), "' is none of gpipe, 1f1b, interleaved, zb-h1, zb-v"));
}

}  // namespace telar::parallel
