// Where the time of one run of a training step went, in parts that add up to it. Pure, from the run's trace.
//
// Every instant belongs to one part: while a compute lane is busy to the phase of its op; else to what the lane waits
// for as far as that shows: a collective that runs then, or a copy; else to nobody (kIdle: the device had not been
// given its next op). Of several collectives at once the one counts that stands first in Part.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/trace.h"

namespace telar::engine {

enum class Part : uint8_t {
  kForward,
  kBackward,
  kRecompute,
  kOptimizer,
  kOther,         // Computation of no phase.
  kTensorComm,    // Exposed: gathers and scatters of activations.
  kPipelineWait,  // A receive that has not begun to arrive.
  kPipelineWire,  // Messages of the pipeline on their way.
  kWeightComm,    // Exposed gathers of weights.
  kGradComm,      // Exposed reductions of gradients.
  kGangWait,      // Other collectives: where ranks meet, whoever is early waits.
  kCopy,          // Exposed copies from and to host memory.
  kIdle,
};
inline constexpr size_t kParts = static_cast<size_t>(Part::kIdle) + 1;
std::string_view name_of(Part part);  // "forward", ..., "tp_comm_exposed", ...

// What a lane's collectives of one kind exchanged.
struct CommUse {
  uint32_t lane = 0;  // Index into Trace::lanes.
  std::string op;     // "all_reduce", ..., "send".
  uint64_t calls = 0;
  double bytes = 0;    // Of CommCall::bytes().
  double seconds = 0;  // In which they ran, waiting for peers included.
};

// How well a pipeline was filled. Its window goes from where the ranks last met before the first forward to where they
// meet behind the last backward, so that it is the same on all of them; warm-up ends where the rank's first backward
// starts, cool-down begins where its last forward has ended and its first backward has started, as of the simulator
// (parallel/schedule_simulator.h).
struct PipelineUse {
  double window = 0;
  double warmup_idle = 0;  // kPipelineWait, kGangWait and kIdle.
  double steady_idle = 0;
  double cooldown_idle = 0;
};

struct Account {
  double seconds = 0;
  std::array<double, kParts> parts{};  // By Part; they sum to `seconds`.
  std::vector<CommUse> comm;           // In the order of lanes.
  PipelineUse pipeline;
};

// A receive's wire time is taken to be that of the rank's shortest message of as many bytes, either way; what it takes
// longer it waited for its sender.
Account account_of(const Trace& trace);

// The share of the time in which nothing was computed and something exchanged with peers.
double waiting_share(const Account& account);

}  // namespace telar::engine
