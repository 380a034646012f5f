// How far a run is in each of its sources, from one start to the next, through changes of its blend.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/checkpoint/manifest.h"
#include "worker/train/dataset.h"
#include "worker/train/saved_state.h"

namespace telar::train {

class BlendPosition {
 public:
  // Makes the sources of `set` go on where `position` says. If they have given what follows from its samples and their
  // weights, as always while the spec stays, nothing changes. Else the spec now has other sources or weights: the new
  // blend begins here, each source goes on behind its own samples, and one that is new at its first. Returns what is
  // different, a line a source: also of one that goes by the same name and does not hold what it held, whose samples
  // come in another order from here on (files of other text and equal size go unnoticed). DATA_LOSS, class STORAGE,
  // when the position contradicts itself.
  absl::StatusOr<std::vector<std::string>> resume(const Position& position, const v1::JobSpec& spec, Dataset& set);
  // Completes a position of consumed_samples for a checkpoint.
  void note(const Dataset& set, Position& position) const;

 private:
  std::optional<checkpoint::BlendStart> start_;
};

}  // namespace telar::train
