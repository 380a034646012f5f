// Sizes and places that every program of a rank shares: what the spec and the rank's number make of a model.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "telar/v1/spec.pb.h"
#include "worker/backend/device.h"
#include "worker/engine/op.h"
#include "worker/model/head.h"
#include "worker/model/recorder.h"
#include "worker/parallel/flat_layout.h"
#include "worker/parallel/groups.h"
#include "worker/parallel/mesh.h"
#include "worker/parallel/schedule.h"
#include "worker/parallel/stages.h"
#include "worker/parallel/weights.h"

namespace telar::plan {

struct RunShape {
  v1::JobSpec spec;  // Resolved.
  parallel::Mesh mesh;
  parallel::Groups groups;
  parallel::Sharding sharding;
  std::vector<parallel::Stage> stages;    // Of the whole model.
  std::vector<int> rank_of_stage;         // Pipeline rank.
  std::vector<parallel::Action> actions;  // Of a step on this rank, transfers included.
  // Of this rank's time in a step, the share in which the schedule leaves it nothing to do if forward and both halves
  // of the backward take alike on all stages and messages no time: (p - 1) / (m + p - 1) for 1f1b.
  double bubble_theory = 0;
  parallel::FlatLayout layout;
  engine::DType act = engine::DType::kF32;  // Weights and activations.
  model::Fp8 fp8;                           // Without layers: nothing is in FP8.
  int64_t micro_batches = 1;                // A step, on this rank.
  int64_t logits_bytes = model::Head::kChunkBytes;
  int64_t piece_rows = 512;  // The fewest tokens of a piece of a product that overlaps with tensor-parallel transfers.

  // fp32 weights are their own masters.
  bool weights_are_masters() const { return act == engine::DType::kF32; }
  bool sharded() const { return sharding.zero_stage > 0; }
  bool keeps_weight_shards() const { return sharding.zero_stage == 3; }
  bool uses_fp8() const { return !fp8.layers.empty(); }
  bool scales_are_delayed() const { return fp8.delayed.entries > 0; }
  int64_t micro_tokens() const { return int64_t{spec.batch().micro()} * spec.batch().sequence_length(); }
  bool has_stage(int stage) const { return rank_of_stage[static_cast<size_t>(stage)] == mesh.pp; }
  bool has_head() const { return rank_of_stage.back() == mesh.pp; }
  // What this rank's optimizer state holds.
  std::vector<parallel::Piece> pieces() const { return layout.pieces(!sharded()); }
};
// How a resolved spec's layers are dealt out to stages, whichever ranks have these.
std::vector<parallel::Stage> stages_of(const v1::JobSpec& resolved);

// `resolved` without problems. `bucket_elements`: see FlatLayout; 0: as many as the spec's bucket size asks for.
RunShape run_shape(const v1::JobSpec& resolved, const parallel::Mesh& mesh, int64_t bucket_elements = 0);

// FAILED_PRECONDITION names what the job asks for and the device does not have.
absl::Status check_device(const RunShape& shape, const backend::DeviceInfo& device);
// What `device` could do at most with the job's FLOPs, each kind at the dense peak of the type that it runs in; 0: not
// known.
double peak_flops(const RunShape& shape, const backend::DeviceInfo& device);

}  // namespace telar::plan
