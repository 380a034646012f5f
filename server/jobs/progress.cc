#include "server/jobs/progress.h"

#include <algorithm>

#include "server/jobs/goodput.h"

namespace telar::server::jobs {
namespace {

constexpr double kNewShare = 0.1;  // Of the last step in the moving average of step seconds.

void fold_step(JobRecord& record, const v1::RankEvent& event) {
  const v1::StepReport& step = event.step();
  v1::Progress& progress = *record.mutable_job()->mutable_progress();
  const v1::BatchSpec& batch = record.job().spec().batch();
  progress.set_step(step.step());
  progress.set_loss(step.loss());
  if (!record.has_loss()) progress.set_first_loss(step.loss());
  record.set_has_loss(true);
  progress.set_tokens_per_second(step.tokens_per_second());
  progress.set_mfu(step.mfu());
  progress.set_grad_norm(step.grad_norm());
  progress.set_learning_rate(step.learning_rate());
  // Counted from the step, so that steps done again after a restart do not count twice.
  progress.set_tokens(step.step() * batch.global() * batch.sequence_length());
  const double average = record.step_seconds();
  record.set_step_seconds(average == 0 ? step.seconds() : average + kNewShare * (step.seconds() - average));
  const uint64_t left = progress.total_steps() > step.step() ? progress.total_steps() - step.step() : 0;
  progress.set_eta_seconds(static_cast<double>(left) * record.step_seconds());
  *progress.mutable_step_time() = event.time();
}

void fold_classes(JobRecord& record, uint32_t rank, const google::protobuf::RepeatedPtrField<v1::MemoryUse>& uses) {
  RankRecord& own = *record.mutable_ranks(static_cast<int>(rank));
  auto& all = *record.mutable_job()->mutable_memory();
  for (const v1::MemoryUse& use : uses) {
    if (use.bytes() == 0) continue;
    if (use.memory_class() != kHostMemory) own.set_memory_bytes(own.memory_bytes() + use.bytes());
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const v1::MemoryUse& one) { return one.memory_class() == use.memory_class(); });
    if (known == all.end()) {
      *all.Add() = use;
    } else {
      known->set_bytes(std::max(known->bytes(), use.bytes()));
    }
  }
}

}  // namespace

void begin_progress(JobRecord& record) {
  record.mutable_job()->mutable_progress()->set_total_steps(record.job().spec().schedule().steps());
}

void fold_memory(JobRecord& record, uint32_t rank, const v1::RankEvent& event) {
  if (event.has_started()) {
    record.mutable_ranks(static_cast<int>(rank))->clear_memory_bytes();
    fold_classes(record, rank, event.started().memory());
  }
  if (event.has_step()) fold_classes(record, rank, event.step().memory());
}

void fold_event(JobRecord& record, const v1::RankEvent& event) {
  v1::Progress& progress = *record.mutable_job()->mutable_progress();
  switch (event.kind_case()) {
    case v1::RankEvent::kStarted:
      note_start(record, event.started().start_step());
      if (event.started().parameters() != 0) record.mutable_job()->set_parameters(event.started().parameters());
      progress.set_step(event.started().start_step());
      progress.set_resumed_from(event.started().resumed_from());
      *progress.mutable_passed_over() = event.started().passed_over();
      record.set_step_seconds(0);  // Another layout or machine may be faster or slower.
      break;
    case v1::RankEvent::kStep:
      fold_step(record, event);
      break;
    case v1::RankEvent::kEval:
      progress.set_eval_loss(event.eval().loss());
      *progress.mutable_eval_sources() = event.eval().sources();
      break;
    case v1::RankEvent::kCheckpoint:
      // Ranks of older versions told of published ones only, and not of their state.
      if (event.checkpoint().state() == v1::CheckpointReport::STAGED) break;
      note_stall(record, event.checkpoint().stall_seconds());
      if (event.checkpoint().state() == v1::CheckpointReport::FAILED) break;
      progress.set_checkpoint_step(event.checkpoint().step());
      progress.set_checkpoint_path(event.checkpoint().path());
      break;
    case v1::RankEvent::kSample:
      progress.set_sample(event.sample().text());
      break;
    default:
      break;
  }
}

}  // namespace telar::server::jobs
