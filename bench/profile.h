// Where a step's time goes: the ops of a profiled step, summed by kind and by phase.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "worker/engine/program.h"

namespace telar::bench {

struct KindTime {
  std::string kind;    // See kind_of.
  std::string kernel;  // See kernel_of.
  std::string phase;
  int count = 0;  // A step.
  double seconds = 0;
  double flops = 0;
  double bytes = 0;  // See traffic_of.
};

struct StepProfile {
  std::vector<KindTime> kinds;           // Longest first.
  std::map<std::string, double> phases;  // Seconds a step; with "outside", what the step took beside its ops.
  double ops_seconds = 0;
  double step_seconds = 0;  // On the device, copies of inputs and results included.
};

// `op_seconds` by OpId and `step_seconds`: means over the profiled steps.
StepProfile make_profile(const engine::Program& program, const std::vector<double>& op_seconds, double step_seconds);

// As a table, with shares of the step and rates.
std::string to_text(const StepProfile& profile);

}  // namespace telar::bench
