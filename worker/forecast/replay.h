// A step on paper: the planned programs of a job's pipeline ranks, each op taking the time that is given for it.
//
// The model: an op starts when its lane is free, what the plan makes it wait for has ended, and, for one that ranks of
// different pipeline stages do together, when all of them are there; calls of groups inside a stage have partners that
// do the same at the same time. What computes beside a transfer is slower by a share, found in a second pass. So waits,
// bubbles and what communication cannot hide follow from the same lists that ranks run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/plan.h"

namespace telar::forecast {

inline constexpr int kPhases = static_cast<int>(engine::Phase::kOther) + 1;

// A rank's step without anything that only running it needs.
struct PaperOp {
  double seconds = 0;
  double least = 0;               // At the highest clock.
  float slowdown = 0;             // Of what computes beside it; 0 for what computes.
  bool waits_for_kernel = false;  // It cannot start before what computes at that time has ended.
  uint32_t lane = 0;              // Index into PaperRank::lanes.
  engine::Phase phase = engine::Phase::kOther;
  int32_t meeting = -1;                // Index into PaperRank::meetings of the group; -1: waits for nobody.
  uint32_t first_wait = 0, waits = 0;  // In PaperRank::waits.
};
struct PaperRank {
  std::vector<engine::Lane> lanes;
  std::vector<PaperOp> ops;  // In the order of the program.
  std::vector<engine::OpId> waits;
  std::vector<std::string> meetings;  // Names of groups whose members are of several stages.
};

struct PaperTimes {
  double step = 0;  // Until the last rank's last op.
  struct Rank {
    std::array<double, kPhases> busy{};     // Seconds of the compute lane, by phase.
    std::array<double, kPhases> waiting{};  // Seconds without, by the phase of what is waited for.
  };
  std::vector<Rank> ranks;
};

// `clocks`: of each rank, by how much its ops are faster than their seconds, if they can be; empty: 1 of all. INTERNAL:
// ranks wait for each other in a ring, or do not do the same together.
absl::StatusOr<PaperTimes> replay(const std::vector<PaperRank>& ranks, const std::vector<double>& clocks = {});

}  // namespace telar::forecast
