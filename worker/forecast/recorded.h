// A rank's programs, recorded and planned without a device, with what a forecast needs of them.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"
#include "worker/engine/buffer.h"
#include "worker/forecast/replay.h"
#include "worker/parallel/schedule_simulator.h"
#include "worker/plan/run_shape.h"

namespace telar::forecast {

struct RecordedRank {
  PaperRank paper;
  std::array<uint64_t, engine::kMemoryClasses>
      arena_bytes{};              // Of the training step, as its plan has them; io with its StepBuffers.
  uint64_t evaluation_bytes = 0;  // What evaluation needs beside it.
  uint32_t layers = 0;
  uint64_t ops = 0;
  bool uses_domain = false, uses_network = false;  // Has calls of groups inside a domain, of others.
  std::map<int, parallel::StageCost> stages;       // Seconds of one micro-batch, without what waits or travels.
};

// `cluster` is complete. Without `memory` no bytes are found, in a third of the time. INTERNAL: the engine cannot plan
// what was recorded, which is a bug.
absl::StatusOr<RecordedRank> record_rank(const plan::RunShape& shape, const v1::ClusterShape& cluster,
                                         bool memory = true);

}  // namespace telar::forecast
