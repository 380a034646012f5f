#include "worker/forecast/recorded.h"

#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/kernels.h"
#include "worker/engine/graph.h"
#include "worker/engine/lanes.h"
#include "worker/engine/plan.h"
#include "worker/engine/step_buffers.h"
#include "worker/forecast/op_cost.h"
#include "worker/plan/programs.h"

namespace telar::forecast {
namespace {

using engine::KernelId;
using engine::Op;
using engine::OpId;
using engine::Phase;

constexpr double kAnyClock = std::numeric_limits<double>::infinity();

// "s3.mb5/layers..." is of stage 3; without a prefix, of the only stage.
int stage_of(const std::string& name) {
  return name.starts_with("s") && name.find(".mb") < 6 ? std::stoi(name.substr(1)) : 0;
}
bool of_micro_batch(const std::string& name) { return name.starts_with("mb") || name.find(".mb") < 6; }

class PaperWriter {
 public:
  PaperWriter(const plan::RunShape& shape, const v1::ClusterShape& cluster)
      : shape_(shape), cluster_(cluster), costs_(cluster.rates(), links(shape, cluster)) {}

  void write(const engine::Program& program, const std::vector<engine::Lane>& lanes,
             const std::vector<engine::PlannedOp>& ops, uint32_t events, RecordedRank& rank) {
    PaperRank& paper = rank.paper;
    paper.lanes = lanes;
    find_meetings(paper);
    std::vector<OpId> recorder(events, engine::kNoOp);
    for (OpId op = 0; op < ops.size(); ++op) {
      if (ops[op].record != engine::kNoEvent) recorder[ops[op].record] = op;
    }
    for (OpId id = 0; id < program.ops().size(); ++id) {
      const Op& op = program.ops()[id];
      const engine::PlannedOp& planned = ops[id];
      PaperOp one{.seconds = costs_.seconds(op),
                  .least = costs_.seconds(op, kAnyClock),
                  .lane = planned.lane,
                  .phase = op.phase};
      if (op.comm) {
        one.slowdown = static_cast<float>(costs_.slowdown(*op.comm));
        one.waits_for_kernel = cluster_.rates().transfers_wait_for_kernels();
        one.meeting = meeting_of_group_[op.comm->group];
        (costs_.within_domain(*op.comm) ? rank.uses_domain : rank.uses_network) = true;
      } else {
        count(op, one.seconds, rank);
      }
      one.first_wait = static_cast<uint32_t>(paper.waits.size());
      one.waits = static_cast<uint32_t>(planned.waits.size());
      for (const uint32_t event : planned.waits) paper.waits.push_back(recorder[event]);
      paper.ops.push_back(one);
    }
    const auto micro_batches = static_cast<double>(shape_.micro_batches);
    for (auto& [stage, cost] : rank.stages) {
      cost.forward /= micro_batches;
      cost.input_grad /= micro_batches;
      cost.weight_grad /= micro_batches;
    }
  }

 private:
  static std::vector<GroupLink> links(const plan::RunShape& shape, const v1::ClusterShape& cluster) {
    std::vector<GroupLink> all;
    for (const backend::Group& group : shape.groups.list()) {
      all.push_back(link_of(group, static_cast<int>(cluster.domain())));
    }
    return all;
  }

  void find_meetings(PaperRank& paper) {
    const int stage_ranks = shape_.mesh.dp_size * shape_.mesh.tp_size;
    for (const backend::Group& group : shape_.groups.list()) {
      bool across = false;
      for (const int rank : group.ranks) across = across || rank / stage_ranks != shape_.mesh.pp;
      meeting_of_group_.push_back(across ? static_cast<int32_t>(paper.meetings.size()) : -1);
      if (across) paper.meetings.push_back(group.name);
    }
  }

  void count(const Op& op, double seconds, RecordedRank& rank) const {
    if (!of_micro_batch(op.name)) return;
    parallel::StageCost& cost = rank.stages[stage_of(op.name)];
    if (op.phase == Phase::kForward) {
      cost.forward += seconds;
    } else if (op.kernel == KernelId(&backend::Kernels::linear_wgrad) ||
               op.kernel == KernelId(&backend::Kernels::fp8_wgrad)) {
      cost.weight_grad += seconds;
    } else {
      cost.input_grad += seconds;
    }
  }

  const plan::RunShape& shape_;
  const v1::ClusterShape& cluster_;
  const OpCosts costs_;
  std::vector<int32_t> meeting_of_group_;
};

}  // namespace

absl::StatusOr<RecordedRank> record_rank(const plan::RunShape& shape, const v1::ClusterShape& cluster, bool memory) {
  RecordedRank rank;
  for (size_t s = 0; s < shape.stages.size(); ++s) {
    if (shape.has_stage(static_cast<int>(s))) rank.layers += static_cast<uint32_t>(shape.stages[s].layers);
  }
  PaperWriter writer(shape, cluster);
  const auto train = plan::record_train(shape);
  rank.ops = train->program.ops().size();
  if (!memory) {
    const auto graph = engine::build_graph(train->program);
    if (!graph.ok()) return graph.status();
    const engine::LanePlan lanes = engine::plan_lanes(train->program, *graph);
    writer.write(train->program, lanes.lanes, lanes.ops, lanes.events, rank);
    return rank;
  }
  const auto planned = engine::plan(train->program);
  if (!planned.ok()) return planned.status();
  rank.arena_bytes = planned->arena_bytes;
  rank.arena_bytes[static_cast<size_t>(engine::MemoryClass::kIo)] +=
      engine::StepBuffers::device_bytes(train->from_host());
  writer.write(train->program, planned->lanes, planned->ops, planned->events, rank);
  const auto eval = plan::record_eval(shape);
  const auto planned_eval = engine::plan(eval->program);
  if (!planned_eval.ok()) return planned_eval.status();
  rank.evaluation_bytes = planned_eval->total_bytes();
  return rank;
}

}  // namespace telar::forecast
