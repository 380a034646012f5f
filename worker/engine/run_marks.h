// Which op a device was at when it failed.
//
// Such an error is found by whoever waits for the device, and says nothing of the op that caused it; of a graph the
// host has seen no op at all. So lanes leave marks in the host's memory as they get on (backend::Marks): in a run that
// is issued op by op behind every op, in a graph so rarely that they cost nothing to speak of. What a lane's last mark,
// the next that it did not get to, and the waits between lanes leave over is where the error was. Threads: that which
// submits the runs; place() when nothing runs any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/plan.h"

namespace telar::engine {

// Of the ops that a graph runs, those with a mark.
enum class MarkDensity : uint8_t { kNone, kSome, kAll };

// Ops of one lane from `first` on, `count` of them, `last` the last.
struct OpRange {
  OpId first = kNoOp;
  OpId last = kNoOp;
  uint32_t count = 0;
  bool holds(OpId op) const { return count > 0 && first <= op && op <= last; }
};

// By lane: what may have been running when the marks were read. `reached`: by lane, the last op whose mark was there,
// or kNoOp; `leaves`: whether an op has a mark.
std::vector<OpRange> may_be_running(const Plan& plan, std::span<const OpId> reached,
                                    const std::function<bool(OpId)>& leaves);

class RunMarks {
 public:
  // Where a run was.
  struct Place {
    uint64_t run = 0;             // 0: no run had begun.
    std::vector<OpRange> ranges;  // By lane: what may have been running.
  };

  // Null: kNone, or the device leaves no marks. Goes behind the streams that it is given.
  static absl::StatusOr<std::unique_ptr<RunMarks>> create(const Program& program, const Plan& plan,
                                                          backend::Device& device, MarkDensity density);

  // Before all ops of a run, outside of a capture. Runs count from 1; `each_op` says which marks this one leaves.
  void begin(uint64_t run, bool each_op, backend::Stream& origin);
  // Behind the op, before the event that it records.
  void behind(OpId op, bool each_op, backend::Stream& lane);
  bool leaves(OpId op, bool each_op) const { return each_op || marked_[op]; }
  Place place() const;
  // "op 'layer3/qkv' (...) on lane compute"; empty: nothing was running.
  std::string describe(const Place& place) const;

 private:
  RunMarks(const Program& program, const Plan& plan, MarkDensity density);

  const Program& program_;
  const Plan& plan_;
  std::vector<bool> marked_;  // By OpId: leaves a mark in a graph.
  uint64_t run_ = 0;          // The last that began for the host.
  std::unique_ptr<backend::Marks> marks_;
};

}  // namespace telar::engine
