// A pipeline schedule as data: what each pipeline rank does with which micro-batch, in order.
//
// The text form is PyTorch's (torch.distributed.pipelining, the CSV of a compute or a communication schedule), so
// schedules can be exchanged; docs/formats/schedule.md describes it. Generators, passes, the validator and the
// simulator all work on this one type and know nothing of devices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::parallel {

enum class ActionKind : uint8_t {
  kForward,       // F
  kBackward,      // B: all of the backward, that is I and W at once.
  kInputGrad,     // I: the gradient of the stage's input.
  kWeightGrad,    // W: the gradients of the stage's weights.
  kSendForward,   // SEND_F: the stage's output, to the next stage's rank.
  kRecvForward,   // RECV_F: the stage's input, from the previous stage's rank.
  kSendBackward,  // SEND_B: the gradient of the stage's input, to the previous stage's rank.
  kRecvBackward,  // RECV_B: the gradient of the stage's output, from the next stage's rank.
  kUnshard,       // UNSHARD: gather the stage's weights. Like the two below it has no micro-batch.
  kReshard,       // RESHARD: drop them.
  kReduceGrad,    // REDUCE_GRAD: reduce the stage's weight gradients over the replicas.
};

// F, B, I or W.
bool is_compute(ActionKind kind);
// SEND_* or RECV_*.
bool is_transfer(ActionKind kind);
// B or I: what the previous stage's backward waits for.
bool is_input_grad(ActionKind kind);

struct Action {
  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  int micro_batch = 0;  // -1 for UNSHARD, RESHARD and REDUCE_GRAD.

  bool operator==(const Action&) const = default;
};

// Stages are numbered in the order of the forward. A rank may hold several, in a loop (s % ranks), a V, or any other
// way.
struct Schedule {
  int ranks = 0;
  int stages = 0;
  int micro_batches = 0;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> actions;  // By rank, in order.

  bool operator==(const Schedule&) const = default;
};

// One message between the ranks of neighbouring stages: a stage's output to the next stage, or the gradient of a
// stage's input to the previous one.
struct Transfer {
  enum class Direction : uint8_t { kForward, kBackward };
  int from_rank = 0;
  int to_rank = 0;
  int stage = 0;  // The sending one; the receiving one is the next (kForward) or the previous (kBackward).
  Direction direction = Direction::kForward;
  int micro_batch = 0;

  bool operator==(const Transfer&) const = default;
};

std::string to_text(const Action& action);  // "0F0", "3SEND_B1", "0UNSHARD"

// One line a rank, actions separated by commas, each line ended by a newline.
std::string to_text(const Schedule& schedule);

// Reads the text form. Blank entries are bubbles and are passed over, as are blank lines at the end. Counts and the
// place of each stage are read off the actions; whether the schedule works is validate's business.
// INVALID_ARGUMENT names line, entry and column (from 1) of what cannot be read, of a stage on two ranks, and the
// stages that no line has.
absl::StatusOr<Schedule> parse_schedule(std::string_view text);

// Whether the fields fit together, so that a table of stages x micro-batches can be made and indexed: sizes, ranges, at
// least one forward's worth of actions for each. INVALID_ARGUMENT names rank and entry (from 1).
absl::Status check_shape(const Schedule& schedule);

}  // namespace telar::parallel
