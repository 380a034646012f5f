#include "worker/metrics/rank_metrics.h"

#include <cmath>
#include "worker/metrics/families.h"

namespace telar::metrics {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// 1 ms to 2 minutes; a factor of about 1.5 keeps a quantile's error small where steps usually lie.
const Histogram::BucketBoundaries kStepBuckets = {0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1,
                                                  0.15,  0.2,   0.3,   0.5,  0.75, 1,    1.5,  2,     3,
                                                  5,     7.5,   10,    15,   20,   30,   60,   120};
// 10 ms to half an hour.
const Histogram::BucketBoundaries kSaveBuckets = {0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1800};

}  // namespace

struct RankMetrics::Families {
  explicit Families(prometheus::Registry& r)
      : info(gauge(r, "telar_rank_info", "Always 1; says where a rank runs and its place in the layout.")),
        loss(gauge(r, "telar_loss", "Training loss of the last step, mean over the global batch's target tokens.")),
        eval_loss(gauge(r, "telar_eval_loss", "Loss on held-out data at the last evaluation.")),
        eval_source_loss(
            gauge(r, "telar_eval_source_loss", "Loss on the held-out data of one source, where there are several.")),
        grad_norm(gauge(r, "telar_grad_norm", "Global gradient norm of the last step, before clipping.")),
        loss_scale(gauge(r, "telar_loss_scale", "Factor on the loss for the next step's backward; fp16 only.")),
        learning_rate(gauge(r, "telar_learning_rate", "Learning rate of the last step.")),
        step_seconds(prometheus::BuildHistogram()
                         .Name("telar_step_seconds")
                         .Help("Wall time of an optimizer step.")
                         .Register(r)),
        steps(counter(r, "telar_steps_total", "Optimizer steps done by this rank.")),
        skipped_steps(
            counter(r, "telar_skipped_steps_total", "Steps that updated nothing, as their gradient was not finite.")),
        tokens(counter(r, "telar_tokens_total", "Tokens trained on; each rank counts its share of the global batch.")),
        flops(counter(r, "telar_model_flops_total", "Model FLOPs done, this rank's share; recompute is not counted.")),
        peak_flops(gauge(r, "telar_device_peak_flops_per_second", "Dense peak of the device at the job's precision.")),
        memory(gauge(r, "telar_memory_bytes",
                     "Memory of the rank by class: planned, and what was found beside the plan.")),
        phases(counter(r, "telar_step_phase_seconds_total", "Step time by phase.")),
        hardware_flops(
            counter(r, "telar_hardware_flops_total", "FLOPs that the rank's kernels did, recomputed ones too.")),
        comm_bytes(
            counter(r, "telar_comm_bytes_total", "Bytes that collectives exchanged, by the role of their group.")),
        comm_calls(counter(r, "telar_comm_calls_total", "Collectives, by the role of their group.")),
        comm_seconds(counter(r, "telar_comm_seconds_total", "Time that collectives ran, waiting for peers included.")),
        comm_ranks(gauge(r, "telar_comm_group_ranks", "Ranks of the group of this role that the rank is in.")),
        pipeline_window(counter(r, "telar_pipeline_window_seconds_total",
                                "Time from where the ranks met before the first forward to behind the last backward.")),
        pipeline_idle(counter(r, "telar_pipeline_idle_seconds_total",
                              "Of the pipeline's window the time in which this rank had nothing to do.")),
        pipeline_theory(gauge(r, "telar_pipeline_bubble_theoretical_ratio",
                              "Share of the window that the schedule leaves idle if all stages take alike.")),
        checkpoint_time(
            gauge(r, "telar_checkpoint_last_success_timestamp_seconds", "When the last checkpoint was published.")),
        checkpoint_saves(counter(r, "telar_checkpoint_saves_total", "Checkpoints published.")),
        checkpoint_bytes(counter(r, "telar_checkpoint_bytes_total", "Bytes of the checkpoints published.")),
        checkpoint_failures(counter(r, "telar_checkpoint_failures_total", "Saves that were given up.")),
        checkpoint_seconds(prometheus::BuildHistogram()
                               .Name("telar_checkpoint_save_seconds")
                               .Help("From the end of a step to its published checkpoint.")
                               .Register(r)),
        checkpoint_stall(
            counter(r, "telar_checkpoint_stall_seconds_total", "How long training waited for saves that are over.")),
        checkpoint_step(gauge(r, "telar_checkpoint_last_durable_step", "Step of the last checkpoint published.")),
        consumed_samples(gauge(r, "telar_consumed_samples", "Sequences of the data that the job has consumed.")),
        parameters(gauge(r, "telar_parameters", "Parameters of the whole model.")),
        step_time(gauge(r, "telar_last_step_timestamp_seconds", "When the last step ended.")),
        nonfinite(counter(r, "telar_nonfinite_total", "Steps whose loss or gradient norm was not finite.")) {}

  Family<Gauge>& info;
  Family<Gauge>& loss;
  Family<Gauge>& eval_loss;
  Family<Gauge>& eval_source_loss;
  Family<Gauge>& grad_norm;
  Family<Gauge>& loss_scale;
  Family<Gauge>& learning_rate;
  Family<Histogram>& step_seconds;
  Family<Counter>& steps;
  Family<Counter>& skipped_steps;
  Family<Counter>& tokens;
  Family<Counter>& flops;
  Family<Gauge>& peak_flops;
  Family<Gauge>& memory;
  Family<Counter>& phases;
  Family<Counter>& hardware_flops;
  Family<Counter>& comm_bytes;
  Family<Counter>& comm_calls;
  Family<Counter>& comm_seconds;
  Family<Gauge>& comm_ranks;
  Family<Counter>& pipeline_window;
  Family<Counter>& pipeline_idle;
  Family<Gauge>& pipeline_theory;
  Family<Gauge>& checkpoint_time;
  Family<Counter>& checkpoint_saves;
  Family<Counter>& checkpoint_bytes;
  Family<Counter>& checkpoint_failures;
  Family<Histogram>& checkpoint_seconds;
  Family<Counter>& checkpoint_stall;
  Family<Gauge>& checkpoint_step;
  Family<Gauge>& consumed_samples;
  Family<Gauge>& parameters;
  Family<Gauge>& step_time;
  Family<Counter>& nonfinite;
};

// Series appear with the first figure for them: an absent one is honest, a zero would be a lie.
struct RankMetrics::Rank {
  uint64_t epoch = 0;
  bool leads = false;  // Rank 0 speaks for the job.
  double share = 1;    // Of the global tokens.
  double flops_per_token = 0;
  double hardware_flops_per_step = 0;
  v1::StepAccount account;  // The last one.
  Labels labels;
  std::vector<std::pair<const void*, std::function<void()>>> removals;

  template <typename Metric, typename... Arguments>
  Metric& get(Family<Metric>& family, Labels extra = {}, Arguments... arguments) {
    extra.insert(labels.begin(), labels.end());
    Metric& metric = family.Add(extra, arguments...);  // The same series if it exists.
    for (const auto& [known, remove] : removals) {
      if (known == &metric) return metric;
    }
    removals.emplace_back(&metric, [&family, &metric] { family.Remove(&metric); });
    return metric;
  }
  void clear() {
    for (const auto& [metric, remove] : removals) remove();
    removals.clear();
  }
};

RankMetrics::RankMetrics(prometheus::Registry& registry, std::string node)
    : node_(std::move(node)), families_(std::make_unique<Families>(registry)) {}

RankMetrics::~RankMetrics() {
  for (auto& [key, rank] : ranks_) rank.clear();
}

void RankMetrics::add(const std::string& job_id, const v1::RankPlan& plan) {
  const std::lock_guard lock(mutex_);
  Rank& rank = ranks_[{job_id, plan.rank()}];
  if (rank.epoch > plan.epoch()) return;
  rank.clear();
  rank.epoch = plan.epoch();
  rank.leads = plan.rank() == 0;
  rank.share = 1.0 / std::max(1u, plan.world_size());
  rank.labels = {{"job_id", job_id}, {"rank", std::to_string(plan.rank())}};
  const v1::ParallelSpec& parallel = plan.spec().parallel();
  const uint32_t tp = std::max(1u, parallel.tensor()), dp = std::max(1u, parallel.data());
  const char* kind = plan.device().kind() == v1::ResourceSpec::GPU ? "gpu" : "cpu";
  rank.get(families_->info, {{"node", node_},
                             {"device", kind + std::to_string(plan.device().index())},
                             {"tp", std::to_string(plan.rank() % tp)},
                             {"dp", std::to_string(plan.rank() / tp % dp)},
                             {"pp", std::to_string(plan.rank() / tp / dp)}})
      .Set(1);
}

void RankMetrics::observe(const std::string& job_id, uint64_t epoch, uint32_t rank_number, const v1::RankEvent& event) {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find({job_id, rank_number});
  if (found == ranks_.end() || found->second.epoch != epoch) return;
  Rank& rank = found->second;
  const double time = static_cast<double>(event.time().seconds()) + event.time().nanos() * 1e-9;
  switch (event.kind_case()) {
    case v1::RankEvent::kStarted:
      observe_started(rank, event.started());
      break;
    case v1::RankEvent::kStep:
      observe_step(rank, event.step(), time);
      break;
    case v1::RankEvent::kEval:
      if (rank.leads) observe_eval(rank, event.eval());
      break;
    case v1::RankEvent::kCheckpoint:
      if (rank.leads) observe_checkpoint(rank, event.checkpoint(), time);
      break;
    case v1::RankEvent::kSample:
    case v1::RankEvent::kFailure:
    case v1::RankEvent::kFinished:
    case v1::RankEvent::kLogLost:
    case v1::RankEvent::kTrace:
    case v1::RankEvent::KIND_NOT_SET:
      break;
  }
}

void RankMetrics::observe_started(Rank& rank, const v1::RankStarted& started) {
  rank.flops_per_token = static_cast<double>(started.flops_per_token());
  rank.hardware_flops_per_step = started.hardware_flops_per_step();
  if (started.pipeline_bubble_theory() > 0) rank.get(families_->pipeline_theory).Set(started.pipeline_bubble_theory());
  if (started.peak_flops() > 0) rank.get(families_->peak_flops).Set(started.peak_flops());
  for (const v1::MemoryUse& use : started.memory()) {
    rank.get(families_->memory, {{"class", use.memory_class()}}).Set(static_cast<double>(use.bytes()));
  }
  rank.get(families_->steps);
  rank.get(families_->tokens);
  rank.get(families_->flops, {{"convention", "causal"}});
  if (!rank.leads) return;
  rank.get(families_->parameters).Set(static_cast<double>(started.parameters()));
  rank.get(families_->nonfinite);
  rank.get(families_->skipped_steps);
  rank.get(families_->checkpoint_saves);
  rank.get(families_->checkpoint_bytes);
  rank.get(families_->checkpoint_failures);
  rank.get(families_->checkpoint_stall);
}

void RankMetrics::observe_step(Rank& rank, const v1::StepReport& step, double time) {
  const double tokens = static_cast<double>(step.tokens()) * rank.share;
  rank.get(families_->steps).Increment();
  rank.get(families_->tokens).Increment(tokens);
  rank.get(families_->flops, {{"convention", "causal"}}).Increment(tokens * rank.flops_per_token);
  rank.get(families_->step_seconds, {}, kStepBuckets).Observe(step.seconds());
  rank.get(families_->step_time).Set(time);
  if (rank.hardware_flops_per_step > 0) rank.get(families_->hardware_flops).Increment(rank.hardware_flops_per_step);
  observe_time(rank, step);
  for (const v1::MemoryUse& use : step.memory()) {
    rank.get(families_->memory, {{"class", use.memory_class()}}).Set(static_cast<double>(use.bytes()));
  }
  if (!rank.leads) return;
  rank.get(families_->loss).Set(step.loss());
  rank.get(families_->grad_norm).Set(step.grad_norm());
  rank.get(families_->learning_rate).Set(step.learning_rate());
  if (step.loss_scale() > 0) rank.get(families_->loss_scale).Set(step.loss_scale());
  if (step.skipped()) rank.get(families_->skipped_steps).Increment();
  rank.get(families_->consumed_samples).Set(static_cast<double>(step.consumed_samples()));
  if (!std::isfinite(step.loss()) || !std::isfinite(step.grad_norm())) rank.get(families_->nonfinite).Increment();
}

// Steps between two accounts are taken to be like the last: their device time is split as its.
void RankMetrics::observe_time(Rank& rank, const v1::StepReport& step) {
  if (step.has_account()) rank.account = step.account();
  const v1::StepAccount& account = rank.account;
  const auto add = [&](const std::string& phase, double seconds) {
    rank.get(families_->phases, {{"phase", phase}}).Increment(std::max(0.0, seconds));
  };
  double device = 0;
  for (const v1::PhaseTime& phase : step.phases()) {
    const bool on_device = phase.phase() == "device" || phase.phase() == "peers";
    if (on_device) device += phase.seconds();
    if (!on_device || account.seconds() <= 0) add(phase.phase(), phase.seconds());
  }
  if (account.seconds() <= 0) return;
  const double scale = std::max(0.0, device) / account.seconds();
  for (const v1::PhaseTime& part : account.parts()) add(part.phase(), part.seconds() * scale);
  for (const v1::CommUse& use : account.communication()) {
    const Labels labels = {{"group", use.group()}, {"op", use.op()}};
    rank.get(families_->comm_bytes, labels).Increment(static_cast<double>(use.bytes()));
    rank.get(families_->comm_calls, labels).Increment(static_cast<double>(use.calls()));
    rank.get(families_->comm_seconds, labels).Increment(use.seconds() * scale);
    rank.get(families_->comm_ranks, {{"group", use.group()}}).Set(use.ranks());
  }
  if (!account.has_pipeline()) return;
  const v1::PipelineUse& use = account.pipeline();
  rank.get(families_->pipeline_window).Increment(use.window_seconds() * scale);
  const auto idle = [&](const char* part, double seconds) {
    rank.get(families_->pipeline_idle, {{"part", part}}).Increment(seconds * scale);
  };
  idle("warmup", use.warmup_idle_seconds());
  idle("steady", use.steady_idle_seconds());
  idle("cooldown", use.cooldown_idle_seconds());
}

void RankMetrics::observe_eval(Rank& rank, const v1::EvalReport& eval) {
  rank.get(families_->eval_loss).Set(eval.loss());
  for (const v1::SourceLoss& source : eval.sources()) {
    rank.get(families_->eval_source_loss, {{"source", source.name()}}).Set(source.loss());
  }
}

void RankMetrics::observe_checkpoint(Rank& rank, const v1::CheckpointReport& checkpoint, double time) {
  if (checkpoint.state() == v1::CheckpointReport::STAGED) return;
  rank.get(families_->checkpoint_stall).Increment(std::max(0.0, checkpoint.stall_seconds()));
  if (checkpoint.state() == v1::CheckpointReport::FAILED) {
    rank.get(families_->checkpoint_failures).Increment();
    return;
  }
  rank.get(families_->checkpoint_time).Set(time);
  rank.get(families_->checkpoint_step).Set(static_cast<double>(checkpoint.step()));
  rank.get(families_->checkpoint_seconds, {}, kSaveBuckets).Observe(checkpoint.seconds());
  rank.get(families_->checkpoint_saves).Increment();
  rank.get(families_->checkpoint_bytes).Increment(static_cast<double>(checkpoint.bytes()));
}

void RankMetrics::forget(const std::string& job_id, uint64_t epoch, uint32_t rank) {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find({job_id, rank});
  if (found == ranks_.end() || found->second.epoch != epoch) return;
  found->second.clear();
  ranks_.erase(found);
}

}  // namespace telar::metrics
