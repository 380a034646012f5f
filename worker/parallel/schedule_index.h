// Where the actions of a schedule stand, and what each waits for. Shared by the passes, the validator and the
// simulator.
#pragma once

#include <array>
#include <vector>

#include "worker/parallel/schedule.h"

namespace telar::parallel {

class ScheduleIndex {
 public:
  // check_shape(schedule) must be OK. Keeps a reference.
  explicit ScheduleIndex(const Schedule& schedule);

  // The entry of such an action (the first of several) in the list of its stage's rank; -1: there is none.
  int find(ActionKind kind, int stage, int micro_batch) const;

  struct Need {
    Action action;
    int entry = -1;  // On the same rank as the action that needs it; -1: not there.
  };
  // A list of at most two.
  struct Needs {
    std::array<Need, 2> items;
    size_t size = 0;

    void add(const Need& need) { items[size++] = need; }
    const Need* begin() const { return items.data(); }
    const Need* end() const { return items.data() + size; }
  };
  // What must have ended on the action's own rank before it starts, by the data alone. A receive also waits for its
  // send.
  Needs needs(const Action& action) const;

  // The stage at the other end of a SEND or RECV, -1 where the pipeline ends.
  int other_stage(const Action& transfer) const;
  // The RECV of a SEND and the SEND of a RECV; its entry is on the other stage's rank. other_stage must not be -1.
  Need partner(const Action& transfer) const;

  bool has_transfers() const { return has_transfers_; }

 private:
  size_t cell(ActionKind kind, int stage, int micro_batch) const;
  int find_input_grad(int stage, int micro_batch) const;
  // What `neighbour` hands to `action`'s stage: its action on the same rank, or the RECV.
  Need arrival(const Action& action, int neighbour) const;

  const Schedule& schedule_;
  std::vector<int> entries_;  // By kind, stage, micro-batch.
  bool has_transfers_ = false;
};

}  // namespace telar::parallel
