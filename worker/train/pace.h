// Where a step's time went, on the thread of the loop.
#pragma once

#include <chrono>
#include <optional>

namespace telar::train {

// A step's time begins at the end of the one before, or, where none was in flight behind that one, at its own
// submission: what the aftermath of a step (checkpoint, evaluation) cost belongs to no step. Meanwhile the device runs
// this step, so that only time that the others leave is `device`. Seconds.
struct Pace {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double data_wait = 0, device = 0, checkpoint_stall = 0, seconds = 0;
  std::optional<double> peers;  // Of `device`: waiting for other ranks. Where it is known.
};

}  // namespace telar::train
