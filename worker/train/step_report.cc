#include "worker/train/step_report.h"

#include <algorithm>
#include <string>

#include "worker/optim/schedule.h"

namespace telar::train {
namespace {

void add_phase(google::protobuf::RepeatedPtrField<v1::PhaseTime>& phases, std::string name, double seconds) {
  v1::PhaseTime& time = *phases.Add();
  time.set_phase(std::move(name));
  time.set_seconds(seconds);
}

}  // namespace

v1::StepReport step_report(const v1::RankPlan& plan, const StepFacts& facts, uint64_t step, uint64_t samples,
                           const StepResult& result, const Pace& pace) {
  const v1::JobSpec& spec = plan.spec();
  v1::StepReport report;
  report.set_step(step);
  report.set_loss(result.loss);
  report.set_grad_norm(result.grad_norm);
  report.set_learning_rate(optim::learning_rate(spec.schedule(), spec.optimizer().learning_rate(), step));
  const double tokens = static_cast<double>(spec.batch().global()) * spec.batch().sequence_length();
  report.set_tokens(static_cast<uint64_t>(tokens));
  report.set_consumed_samples(samples);
  report.set_skipped(result.skipped);
  if (spec.precision().compute() == v1::FP16) report.set_loss_scale(result.loss_scale);
  report.set_seconds(pace.seconds);
  report.set_tokens_per_second(tokens / pace.seconds);
  if (facts.peak_flops > 0) {
    report.set_mfu(tokens / pace.seconds * facts.flops_per_token / (facts.peak_flops * plan.world_size()));
  }
  auto& phases = *report.mutable_phases();
  add_phase(phases, "data_wait", pace.data_wait);
  add_phase(phases, "device", pace.device - pace.peers.value_or(0));
  if (pace.peers) add_phase(phases, "peers", *pace.peers);
  add_phase(phases, "checkpoint_stall", pace.checkpoint_stall);
  add_phase(phases, "host", std::max(0.0, pace.seconds - pace.data_wait - pace.device - pace.checkpoint_stall));
  return report;
}

v1::StepAccount step_account(const engine::Account& account, const engine::Trace& trace, bool pipeline,
                             const std::vector<parallel::Group>& groups) {
  v1::StepAccount told;
  told.set_seconds(account.seconds);
  for (size_t i = 0; i < engine::kParts; ++i) {
    if (account.parts[i] == 0) continue;
    add_phase(*told.mutable_parts(), std::string(name_of(static_cast<engine::Part>(i))), account.parts[i]);
  }
  for (const engine::CommUse& use : account.comm) {
    v1::CommUse& one = *told.add_communication();
    const std::string& lane = trace.lanes[use.lane].name;
    const auto group = std::ranges::find(groups, lane, &parallel::Group::name);
    one.set_group(lane.substr(0, lane.find('.')));
    one.set_ranks(group == groups.end() ? 0 : static_cast<uint32_t>(group->ranks.size()));
    one.set_op(use.op);
    one.set_calls(use.calls);
    one.set_bytes(static_cast<uint64_t>(use.bytes));
    one.set_seconds(use.seconds);
  }
  if (!pipeline) return told;
  v1::PipelineUse& use = *told.mutable_pipeline();
  use.set_window_seconds(account.pipeline.window);
  use.set_warmup_idle_seconds(account.pipeline.warmup_idle);
  use.set_steady_idle_seconds(account.pipeline.steady_idle);
  use.set_cooldown_idle_seconds(account.pipeline.cooldown_idle);
  return told;
}

}  // namespace telar::train
