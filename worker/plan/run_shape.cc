#include "worker/plan/run_shape.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/model/parameters.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/parallel/schedule_passes.h"
#include "worker/parallel/schedule_simulator.h"
#include "worker/plan/resolve.h"
#include "worker/plan/resolve_fp8.h"

namespace telar::plan {
namespace {

using engine::DType;

DType act_type(v1::Precision precision) {
  if (precision == v1::BF16 || precision == v1::FP8) return DType::kBF16;
  return precision == v1::FP16 ? DType::kF16 : DType::kF32;
}

parallel::LoweredSchedule schedule_of(const v1::ParallelSpec& spec, int64_t micro_batches) {
  auto made = spec.schedule() == "custom"
                  ? parallel::parse_schedule(spec.schedule_text())
                  : parallel::make_schedule(spec.schedule(), static_cast<int>(spec.pipeline()),
                                            static_cast<int>(spec.virtual_stages()), static_cast<int>(micro_batches));
  return *parallel::lower(*made);  // Resolving the spec did the same and found nothing wrong.
}

// The head's work in that of a layer.
double head_in_layers(const v1::JobSpec& spec) {
  const v1::ModelSpec& model = spec.model();
  const double head = 6.0 * model.vocab() * static_cast<double>(model.hidden());
  const double rest = flops_per_token(model, spec.batch().sequence_length()) - head;
  return head / (rest / model.layers());
}

model::Fp8 fp8_of(const v1::JobSpec& spec) {
  const bool hybrid = spec.precision().fp8_gradients() == v1::PrecisionSpec::E5M2;
  model::Fp8 fp8{
      .layers = fp8_layers(spec),
      .gradients = hybrid ? DType::kF8E5M2 : DType::kF8E4M3,
      .fast_forward = spec.precision().fp8_fast_accumulation(),
      .blocks = spec.precision().compute() == v1::FP8 && spec.precision().recipe() == v1::PrecisionSpec::BLOCK};
  if (spec.precision().compute() == v1::FP8 && spec.precision().recipe() == v1::PrecisionSpec::DELAYED) {
    fp8.delayed = {.entries = spec.precision().fp8_history(),
                   .products = model::layer_products(spec.model()),
                   .newest = spec.precision().fp8_amax() == v1::PrecisionSpec::MOST_RECENT,
                   .margin = std::exp2(static_cast<float>(spec.precision().fp8_margin()))};
  }
  return fp8;
}

// Pairs of pipeline ranks between which a schedule sends, either way.
std::vector<std::pair<int, int>> flows(const std::vector<int>& rank_of_stage) {
  std::vector<std::pair<int, int>> found;
  for (size_t s = 0; s + 1 < rank_of_stage.size(); ++s) {
    const int a = rank_of_stage[s], b = rank_of_stage[s + 1];
    if (a == b) continue;
    found.emplace_back(a, b);
    found.emplace_back(b, a);
  }
  return found;
}

double bubble_of(const parallel::Schedule& schedule, int rank) {
  if (schedule.actions.size() < 2) return 0;
  const auto forecast = parallel::simulate(
      schedule, {.stages = std::vector<parallel::StageCost>(schedule.rank_of_stage.size(), {1, 1, 1})});
  return forecast.ok() ? forecast->ranks[static_cast<size_t>(rank)].idle / forecast->makespan : 0;
}

}  // namespace

std::vector<parallel::Stage> stages_of(const v1::JobSpec& resolved) {
  const v1::ParallelSpec& spec = resolved.parallel();
  if (!spec.stage_layers().empty())
    return parallel::given_stages({spec.stage_layers().begin(), spec.stage_layers().end()});
  return parallel::split_stages(static_cast<int>(resolved.model().layers()),
                                static_cast<int>(spec.pipeline() * spec.virtual_stages()),
                                {.embedding = 0, .head = head_in_layers(resolved)});
}

RunShape run_shape(const v1::JobSpec& resolved, const parallel::Mesh& mesh, int64_t bucket_elements) {
  const v1::ParallelSpec& spec = resolved.parallel();
  const v1::ModelSpec& model = resolved.model();
  const int64_t micro_batches = resolved.batch().global() / mesh.dp_size / resolved.batch().micro();
  const parallel::LoweredSchedule schedule = schedule_of(spec, micro_batches);
  const std::vector<int>& rank_of_stage = schedule.schedule.rank_of_stage;
  const std::vector<parallel::Stage> stages = stages_of(resolved);
  const bool tied_across = model.tied_head() && rank_of_stage.front() != rank_of_stage.back();
  const int shard = spec.zero_stage() > 0 ? static_cast<int>(spec.shard()) : mesh.dp_size;
  const int zero_stage = shard > 1 ? static_cast<int>(spec.zero_stage()) : 0;

  model::Share share{mesh.tp_size, mesh.tp, {}, tied_across};
  std::vector<int> stage_of_unit(model.layers() + 2);
  for (size_t s = 0; s < stages.size(); ++s) {
    if (rank_of_stage[s] == mesh.pp) share.stages.push_back(stages[s]);
    for (int i = 0; i < stages[s].layers; ++i) {
      stage_of_unit[static_cast<size_t>(stages[s].first_layer + i + 1)] = static_cast<int>(s);
    }
  }
  stage_of_unit.back() = static_cast<int>(stages.size()) - 1;

  parallel::GroupOptions groups;
  groups.key_value_replicas = model::key_value_replicas(model, mesh.tp_size);
  groups.shard = shard;
  groups.gathers = zero_stage > 0;
  groups.tied_across = tied_across;
  groups.first_stage_rank = rank_of_stage.front();
  groups.last_stage_rank = rank_of_stage.back();
  groups.flows = flows(rank_of_stage);

  if (bucket_elements == 0) bucket_elements = (int64_t{spec.bucket_mib()} << 20) / 4 * mesh.tp_size;
  return {.spec = resolved,
          .mesh = mesh,
          .groups = parallel::Groups(mesh, groups),
          .sharding = {zero_stage, static_cast<int>(spec.prefetch()), spec.reduce() == v1::BF16},
          .stages = stages,
          .rank_of_stage = rank_of_stage,
          .actions = schedule.schedule.actions[static_cast<size_t>(mesh.pp)],
          .bubble_theory = bubble_of(schedule.schedule, mesh.pp),
          .layout = parallel::FlatLayout(model::parameter_groups(model, share), bucket_elements,
                                         {shard, mesh.dp % shard}, stage_of_unit),
          .act = act_type(resolved.precision().compute()),
          .fp8 = fp8_of(resolved),
          .micro_batches = micro_batches};
}

absl::Status check_device(const RunShape& shape, const backend::DeviceInfo& device) {
  if (!shape.uses_fp8()) return absl::OkStatus();
  if (!device.multiplies_fp8) {
    return absl::FailedPreconditionError(
        absl::StrCat("spec.precision.compute: fp8 needs a GPU of compute capability 8.9 or later, and this is ",
                     device.model, "; use bf16"));
  }
  if (!shape.fp8.blocks || device.multiplies_fp8_blocks) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("spec.precision.recipe: block needs a GPU of compute capability 9.0, and this is ", device.model,
                   "; use current"));
}

double peak_flops(const RunShape& shape, const backend::DeviceInfo& device) {
  const double share = shape.uses_fp8() ? fp8_flops_share(shape.spec) : 0, rest = device.peak_flops(shape.act);
  if (share == 0) return rest;
  const double fp8 = device.peak_flops(DType::kF8E4M3);
  return rest > 0 && fp8 > 0 ? 1 / (share / fp8 + (1 - share) / rest) : 0;
}

}  // namespace telar::plan
