#include "worker/train/run.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "worker/backend/module.h"
#include "worker/data/batch_loader.h"
#include "worker/engine/digest.h"
#include "worker/optim/schedule.h"
#include "worker/plan/resolve.h"
#include "worker/train/blend_position.h"
#include "worker/train/coordinator_commit.h"
#include "worker/train/curves.h"
#include "worker/train/dataset.h"
#include "worker/train/evaluator.h"
#include "worker/train/failure.h"
#include "worker/train/flight_log.h"
#include "worker/train/generator.h"
#include "worker/train/host_memory.h"
#include "worker/train/pace.h"
#include "worker/train/rendezvous.h"
#include "worker/train/saved_state.h"
#include "worker/train/saves.h"
#include "worker/train/seconds.h"
#include "worker/train/step_report.h"
#include "worker/train/step_trace.h"

namespace telar::train {
namespace {

using Clock = std::chrono::steady_clock;
using flight::Activity;

// Steps in a row whose loss or gradient is not finite before the run gives up. With loss scaling such steps are how the
// scale is found: they count once it cannot go down any more.
constexpr int kMostBadSteps = 10;

// Steps of a start by which all is tuned, allocated and captured.
constexpr uint64_t kSettlingSteps = 3;

constexpr std::chrono::minutes kComparePatience{2};

// For the save that is under way when the run fails: long enough for one that is nearly done, too short to keep others
// waiting for the news.
constexpr std::chrono::seconds kSaveAfterFailure{10};

class Run {
 public:
  Run(const v1::RankPlan& plan, EventLog& events, const std::atomic<bool>& stop, Replica::Execution execution,
      const RunSeams& seams)
      : plan_(plan),
        spec_(plan.spec()),
        mesh_(parallel::Mesh::of_rank(static_cast<int>(plan.rank()), static_cast<int>(spec_.parallel().data()),
                                      static_cast<int>(spec_.parallel().pipeline()),
                                      static_cast<int>(spec_.parallel().tensor()))),
        shape_(plan::run_shape(spec_, mesh_)),
        events_(events),
        stop_(stop),
        execution_(execution),
        seams_(seams),
        flight_(
            FlightLog::create(seams.flight_path, shape_.groups.list(), plan.device().kind() == v1::ResourceSpec::GPU)),
        trace_(plan, mesh_, shape_.groups.list(), seams.trace) {
    flight_->set_activity(Activity::kStarting);
  }

  absl::StatusOr<RunOutcome> execute() {
    for (const auto stage : {&Run::open_device, &Run::join_gang, &Run::choose_start, &Run::build, &Run::restore_or_init,
                             &Run::announce, &Run::train, &Run::finish}) {
      const absl::Status status = (this->*stage)();
      if (status.ok()) continue;
      if (saves_ != nullptr) {
        saves_->finish_or_give_up(kSaveAfterFailure);
        (void)tell_saves();
      }
      return status;
    }
    return outcome_;
  }

 private:
  bool leader() const { return plan_.rank() == 0; }
  bool scales_loss() const { return spec_.precision().compute() == v1::FP16; }

  absl::Status open_device() {
    const bool gpu = plan_.device().kind() == v1::ResourceSpec::GPU;
    auto device = backend::open_device(
        gpu ? "cuda" : "cpu", {static_cast<int>(plan_.device().index()), std::max(1, static_cast<int>(plan_.threads())),
                               spec_.deterministic()});
    if (!device.ok()) return with_class(v1::CONFIG, device.status());
    device_ = *std::move(device);
    const absl::Status suits = plan::check_device(shape_, device_->info());
    return suits.ok() ? suits : with_class(v1::CONFIG, suits);
  }

  // All communicators at once and before anything else, in the one order that all ranks keep.
  absl::Status join_gang() {
    if (plan_.world_size() == 1) return absl::OkStatus();
    store_ = dial_rendezvous(plan_);
    backend::GangOptions options;
    options.rank = static_cast<int>(plan_.rank());
    options.listen_host = plan_.listen_host();
    auto communicators = device_->create_communicators(*store_, options, shape_.groups.list());
    if (!communicators.ok()) return with_class(v1::COMMUNICATION, communicators.status());
    communicators_ = *std::move(communicators);
    return absl::OkStatus();
  }

  // Before the model takes any memory: what cannot be loaded is told of at once.
  absl::Status choose_start() {
    if (!plan_.rendezvous_address().empty()) coordinator_ = dial_committer(plan_);
    saved_ = std::make_unique<SavedState>(
        plan_, coordinator_ != nullptr ? static_cast<checkpoint::Committer&>(*coordinator_) : alone_,
        seams_.checkpoints != nullptr ? *seams_.checkpoints : checkpoint::FileSystem::posix());
    // Rank 0 decides which checkpoint, so that all restore the same one.
    auto chosen = saved_->choose(store_.get());
    if (!chosen.ok()) return chosen.status();
    resumed_from_ = *std::move(chosen);
    if (!resumed_from_.empty()) return saved_->check_state(resumed_from_);
    if (spec_.checkpoint().init_from().empty()) return absl::OkStatus();
    auto weights = saved_->open_weights(spec_.checkpoint().init_from());
    if (!weights.ok()) return weights.status();
    first_weights_ = *std::move(weights);
    return absl::OkStatus();
  }

  absl::Status build() {
    // One rank of each node writes it, as nodes need not see the same files.
    const bool writes = plan_.node_ranks().empty() || plan_.node_ranks(0) == plan_.rank();
    const data::IndexCache cache(plan_.run_dir() + "/index", writes ? absl::StrCat(plan_.rank(), "-") : "");
    auto dataset = open_dataset(spec_, cache);
    if (!dataset.ok()) return dataset.status();
    dataset_.emplace(*std::move(dataset));
    std::vector<backend::Communicator*> groups;
    for (const auto& communicator : communicators_) groups.push_back(communicator.get());
    auto replica = Replica::create(shape_, *device_, groups, execution_, flight_.get());
    if (!replica.ok()) return replica.status();
    replica_ = *std::move(replica);
    return compare_plans();
  }

  // Ranks that planned different calls would hang or mix up each other's data.
  absl::Status compare_plans() {
    for (size_t g = 0; g < communicators_.size(); ++g) {
      const int rank = communicators_[g]->rank(), size = communicators_[g]->size();
      const engine::CommDigest digest =
          engine::digest(replica_->train_program(), static_cast<engine::GroupId>(g), rank, size);
      const absl::Status status =
          engine::compare_digests(*store_, "train/" + shape_.groups.list()[g].name, rank, digest, kComparePatience);
      if (absl::IsFailedPrecondition(status)) return with_class(v1::INTERNAL, status);
      if (!status.ok()) return with_class(v1::COMMUNICATION, status);
    }
    return absl::OkStatus();
  }

  absl::Status restore_or_init() {
    saves_ = std::make_unique<Saves>(plan_, *saved_, *replica_, coordinator_.get(), Saves::Patience());
    if (const absl::Status room = saves_->prepare(available_host_memory(), store_.get()); !room.ok()) return room;
    if (!resumed_from_.empty()) {
      const auto position = saved_->restore(resumed_from_, *replica_);
      if (!position.ok()) return position.status();
      outcome_.step = position->step;
      consumed_samples_ = position->consumed_samples;
      eval_loss_ = position->eval_loss;
      saved_step_ = outcome_.step;
      spdlog::info("resumed from {} at step {}", resumed_from_, outcome_.step);
      return resume_blend(*position);
    }
    const absl::Status status = replica_->init();
    if (!status.ok() || first_weights_ == nullptr) return status;
    const absl::Status loaded = saved_->load_weights(*first_weights_, *replica_);
    first_weights_.reset();
    return loaded;
  }

  // Each source goes on behind what it has given, also when there are others now, or other weights.
  absl::Status resume_blend(const Position& position) {
    auto resumed = blend_.resume(position, spec_, *dataset_);
    if (!resumed.ok()) return with_prefix(absl::StrCat("checkpoint ", resumed_from_, ": "), resumed.status());
    for (const std::string& change : *resumed) {
      if (leader()) spdlog::warn("data.sources at sample {}: {}", consumed_samples_, change);
    }
    return absl::OkStatus();
  }

  absl::Status announce() {
    facts_.flops_per_token = plan::flops_per_token(spec_.model(), spec_.batch().sequence_length());
    const backend::DeviceInfo& info = device_->info();
    facts_.peak_flops = plan::peak_flops(replica_->shape(), info);
    v1::RankEvent event;
    v1::RankStarted& started = *event.mutable_started();
    started.set_parameters(plan::parameter_count(spec_.model()));
    started.set_flops_per_token(static_cast<uint64_t>(facts_.flops_per_token));
    started.set_peak_flops(facts_.peak_flops);
    started.set_fp8_share(plan::fp8_flops_share(spec_));
    double hardware_flops = 0;
    for (const engine::Op& op : replica_->train_program().ops()) hardware_flops += op.cost.flops;
    started.set_hardware_flops_per_step(hardware_flops);
    started.set_pipeline_bubble_theory(shape_.bubble_theory);
    started.set_start_step(outcome_.step);
    started.set_resumed_from(resumed_from_);
    for (const std::string& passed_over : saved_->passed_over()) started.add_passed_over(passed_over);
    started.set_train_tokens(dataset_->train_tokens);
    started.set_eval_tokens(dataset_->eval_tokens);
    announce_sources(started);
    const auto& arenas = replica_->train_plan().arena_bytes;
    for (int i = 0; i < engine::kMemoryClasses; ++i) {
      v1::MemoryUse& use = *started.add_memory();
      use.set_memory_class(std::string(engine::name_of(static_cast<engine::MemoryClass>(i))));
      uint64_t beside = 0;
      if (static_cast<engine::MemoryClass>(i) == engine::MemoryClass::kIo) beside = replica_->staging_bytes();
      if (static_cast<engine::MemoryClass>(i) == engine::MemoryClass::kHost) beside = saves_->host_bytes();
      use.set_bytes(arenas[static_cast<size_t>(i)] + beside);
    }
    spdlog::info("{} parameters, {} train tokens, {} held out, {} MiB on {}", started.parameters(),
                 started.train_tokens(), started.eval_tokens(), replica_->train_plan().total_bytes() >> 20, info.model);
    if (leader()) {
      auto curves = Curves::open(plan_, started);
      if (!curves.ok()) return curves.status();
      curves_ = *std::move(curves);
    }
    return events_.write(event);
  }

  // What each source of a blend gives to the run, and which of them it goes through more than once.
  void announce_sources(v1::RankStarted& started) const {
    *started.mutable_sources() = {dataset_->sources.begin(), dataset_->sources.end()};
    if (!leader()) return;
    for (const v1::SourceReport& source : dataset_->sources) {
      spdlog::log(source.epochs() > 1 ? spdlog::level::warn : spdlog::level::info,
                  "source {}: {} train tokens, {} held out, {:.1f} % of the samples, gone through {:.2f} times",
                  source.name(), source.train_tokens(), source.eval_tokens(), 100 * source.share(), source.epochs());
    }
  }

  absl::Status train() {
    if (seams_.may_begin == nullptr ? stop_.load() : !seams_.may_begin()) {
      outcome_.interrupted = true;
      return absl::OkStatus();
    }
    if (saved_step_ == outcome_.step && evaluates_behind(outcome_.step) && !eval_loss_) {  // Stopped before that.
      const absl::Status status = evaluate_now();
      outcome_.interrupted = stopping_;
      if (!status.ok() || stopping_) return status;
    }
    if (outcome_.step >= spec_.schedule().steps()) return absl::OkStatus();
    data::LoaderOptions options;
    options.first_sample = consumed_samples_;
    options.steps = spec_.schedule().steps() - outcome_.step;
    options.global_batch = spec_.batch().global();
    options.dp_index = static_cast<uint32_t>(mesh_.dp);
    options.dp_count = spec_.parallel().data();
    options.starts = spec_.data().reset_at_documents();
    options.micro_batches = static_cast<uint32_t>(replica_->shape().micro_batches);
    auto loader = data::BatchLoader::start(*dataset_->train, options);
    if (!loader.ok()) return with_class(v1::DATA, loader.status());
    submitted_ = start_step_ = outcome_.step;
    if (execution_ == Replica::Execution::kLanes) trace_.observe_from(start_step_);
    while (outcome_.step < spec_.schedule().steps() && !outcome_.interrupted) {
      const absl::Status status = one_step(**loader);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Submits as far ahead as may be, then waits for the oldest step and reports it while the next one runs; then what is
  // due behind it. What is submitted when depends on step numbers and results only, which all ranks have alike.
  absl::Status one_step(data::BatchLoader& loader) {
    Pace pace;
    if (replica_->in_flight() > 0) {
      pace.start = last_end_;
    } else {
      flight_->waited();  // What was before belongs to no step.
    }
    while (may_submit()) {
      const absl::Status status = submit_one(loader, pace);
      if (status.ok()) continue;
      // The loader repeats its error when the steps before have had their say.
      if (class_of(status) == v1::DATA && replica_->in_flight() > 0) break;
      return status;
    }
    const auto wait_start = Clock::now();
    const auto result = replica_->finish_step();
    if (!result.ok()) return named(result.status());
    last_end_ = Clock::now();
    pace.device = seconds_between(wait_start, last_end_);
    count_held(result->held, pace);
    pace.peers = flight_->waited();
    if (pace.peers) pace.peers = std::min(*pace.peers, pace.device);
    pace.seconds = seconds_between(pace.start, last_end_);
    ++outcome_.step;
    if (outcome_.step >= start_step_ + kSettlingSteps) flight_->set_activity(Activity::kTraining);
    consumed_samples_ += spec_.batch().global();
    eval_loss_.reset();
    stopping_ = stopping_ || result->stop;
    absl::Status status = check_finite(*result);
    if (status.ok()) status = report_step(*result, pace);
    if (!status.ok()) return status;
    if (stages_behind(outcome_.step) && !evaluates_behind(outcome_.step)) write_staged();
    if (replica_->in_flight() == 0) status = behind_step();
    if (const absl::Status told = tell_saves(); status.ok()) status = told;
    return status;
  }

  // What the device waited for a save's copy is no work of its own.
  void count_held(double held, Pace& pace) {
    if (held <= 0) return;
    saves_->count_stall(held);
    const double seen = std::min(held, pace.device);
    pace.device -= seen;
    pace.checkpoint_stall += seen;
  }

  // Nothing runs on top of a step that is looked at from the host, nor once some rank asked to stop: a step that is in
  // flight by then is the last.
  bool may_submit() const {
    if (submitted_ == spec_.schedule().steps() || stopping_) return false;
    if (replica_->in_flight() == 0) return true;
    if (replica_->in_flight() == engine::StepBuffers::kSlots || is_due_behind(submitted_)) return false;
    return !stages_behind(submitted_ + 1) || saves_->may_stage();
  }

  absl::Status submit_one(data::BatchLoader& loader, Pace& pace) {
    const bool stages = stages_behind(submitted_ + 1);
    if (stages) {
      const Doing saving(*flight_, Activity::kSaving);
      pace.checkpoint_stall += saves_->make_room();
    }
    if (const absl::Status told = saves_->check_end(); !told.ok()) return told;
    const auto batch = loader.next();
    if (!batch.ok()) return with_class(v1::DATA, batch.status());
    pace.data_wait += batch->waited_seconds;
    absl::Status status = trace_.begin(submitted_ + 1, *replica_, *device_);
    if (status.ok())
      status = replica_->submit_step(submitted_ + 1, batch->inputs, batch->targets, stop_.load(), batch->starts);
    if (!status.ok()) return named(status);
    ++submitted_;
    return stages ? saves_->stage(submitted_) : absl::OkStatus();
  }

  absl::Status named(const absl::Status& status) const {
    return with_prefix(absl::StrCat("rank ", plan_.rank(), ", "), status);
  }

  absl::Status check_finite(const StepResult& result) {
    if (std::isfinite(result.loss) && std::isfinite(result.grad_norm) && !result.skipped) {
      bad_steps_ = 0;
      return absl::OkStatus();
    }
    if (scales_loss() && result.loss_scale > static_cast<float>(spec_.precision().loss_scale().min())) {
      spdlog::info("step {}: gradient norm {}; the update is skipped, the loss scale is now {}", outcome_.step,
                   result.grad_norm, result.loss_scale);
      return absl::OkStatus();
    }
    spdlog::warn("step {}: loss {} and gradient norm {}; the update is skipped", outcome_.step, result.loss,
                 result.grad_norm);
    if (++bad_steps_ < kMostBadSteps) return absl::OkStatus();
    return with_class(v1::NUMERIC, absl::AbortedError(absl::StrCat("loss or gradient norm not finite for ", bad_steps_,
                                                                   " steps in a row, up to step ", outcome_.step)));
  }

  absl::Status report_step(const StepResult& result, Pace& pace) {
    auto account = trace_.finish(outcome_.step, *replica_);
    if (!account.ok()) return account.status();
    if (*account && !pace.peers && plan_.world_size() > 1) pace.peers = pace.device * (*account)->waiting_share;
    v1::RankEvent event;
    v1::StepReport& report = *event.mutable_step();
    report = step_report(plan_, facts_, outcome_.step, consumed_samples_, result, pace);
    if (*account) *report.mutable_account() = std::move((*account)->told);
    if (outcome_.step == start_step_ + kSettlingSteps) {
      const absl::Status status = report_device(report);
      if (!status.ok()) return status;
    }
    if (curves_ != nullptr) {
      const absl::Status status = curves_->write(report);
      if (!status.ok()) return status;
    }
    absl::Status written = events_.write(event);
    for (v1::TraceReport& trace : trace_.take_reports()) {
      v1::RankEvent told;
      *told.mutable_trace() = std::move(trace);
      written.Update(events_.write(told));
    }
    return written;
  }

  // What the device holds beside the plan, and how steps get there.
  absl::Status report_device(v1::StepReport& report) {
    const auto overhead = device_->overhead();
    if (!overhead.ok()) return overhead.status();
    if (overhead->workspaces == 0 && overhead->context == 0) return absl::OkStatus();  // The device is the host.
    const auto use = [&](const char* memory_class, uint64_t bytes) {
      v1::MemoryUse& made = *report.add_memory();
      made.set_memory_class(memory_class);
      made.set_bytes(bytes);
    };
    use("kernels", overhead->workspaces);
    use("context", overhead->context);
    const engine::GraphState& graph = replica_->graph_state();
    spdlog::info("beside the plan: {} MiB of workspaces, {} MiB of context; steps run {}", overhead->workspaces >> 20,
                 overhead->context >> 20,
                 graph.captured ? absl::StrCat("from a graph of ", graph.nodes, " nodes")
                                : absl::StrCat("op by op: ", graph.why_not));
    return absl::OkStatus();
  }

  bool is_last(uint64_t step) const { return step == spec_.schedule().steps(); }
  static bool is_multiple(uint64_t step, uint64_t every) { return every > 0 && step % every == 0; }
  bool evaluates_behind(uint64_t step) const { return is_last(step) || is_multiple(step, spec_.eval().every_steps()); }
  bool saves_behind(uint64_t step) const {
    return (is_last(step) && spec_.checkpoint().at_end()) || is_multiple(step, spec_.checkpoint().every_steps());
  }
  // The save goes on beside later steps.
  bool stages_behind(uint64_t step) const { return saves_->async() && saves_behind(step); }
  // With no step in flight.
  bool is_due_behind(uint64_t step) const { return evaluates_behind(step) || (saves_behind(step) && !saves_->async()); }
  Position position() const {
    Position position{.step = outcome_.step, .consumed_samples = consumed_samples_, .eval_loss = eval_loss_};
    blend_.note(*dataset_, position);
    return position;
  }

  // With no step in flight.
  absl::Status behind_step() {
    const uint64_t step = outcome_.step;
    absl::Status status;
    if (evaluates_behind(step) && !stopping_) status = evaluate_now();  // Else the resumed run does it.
    if (evaluates_behind(step) && stages_behind(step)) write_staged();  // With the loss.
    if (!status.ok()) return status;
    outcome_.interrupted = stopping_;
    if (stages_behind(step) || !(outcome_.interrupted || saves_behind(step))) return absl::OkStatus();
    return save_idle();
  }

  absl::Status evaluate_now() {
    const Doing evaluating(*flight_, Activity::kEvaluating);
    const auto start = std::chrono::steady_clock::now();
    const auto result = evaluate(*replica_, dataset_->eval, stop_);
    if (!result.ok()) return result.status();
    stopping_ = result->stopped;
    if (stopping_) return absl::OkStatus();
    if (std::isfinite(result->loss)) eval_loss_ = result->loss;
    if (!leader()) return absl::OkStatus();  // Every replica has the same result; one tells it.
    v1::RankEvent event;
    *event.mutable_eval() = report_of(*result, outcome_.step, seconds_since(start));
    const absl::Status status = curves_->write(event.eval());
    return status.ok() ? events_.write(event) : status;
  }

  // All of it while nothing else runs, up to the copy where saves go beside training.
  absl::Status save_idle() {
    if (saved_step_ == outcome_.step) return absl::OkStatus();
    const Doing saving(*flight_, Activity::kSaving);
    if (!saves_->async()) {
      saved_step_ = outcome_.step;
      return saves_->save_now(position());
    }
    saves_->make_room();
    absl::Status status = saves_->check_end();
    if (status.ok()) status = saves_->stage(outcome_.step);
    if (status.ok()) write_staged();
    return status;
  }

  // The step's copy is on its way; what follows is not this thread's.
  void write_staged() {
    saved_step_ = outcome_.step;
    saves_->write(position());
  }

  // Of what became of saves; one rank tells for all.
  absl::Status tell_saves() {
    std::vector<v1::CheckpointReport> reports;
    absl::Status status = saves_->take_reports(reports);
    for (const v1::CheckpointReport& report : reports) {
      if (!leader()) break;
      v1::RankEvent event;
      *event.mutable_checkpoint() = report;
      if (curves_ != nullptr) status.Update(curves_->write(report));
      status.Update(events_.write(event));
    }
    return status;
  }

  // The save of the last step is over, well or not.
  absl::Status finish_saves() {
    const Doing saving(*flight_, Activity::kSaving);
    absl::Status saved = saves_->finish(outcome_.step);
    saved.Update(tell_saves());
    return saved;
  }

  // A sample is drawn by all ranks together: each has a part of the model.
  absl::Status finish() {
    if (const absl::Status saved = finish_saves(); !saved.ok()) return saved;
    std::string text;
    bool samples = !outcome_.interrupted && spec_.sample().tokens() > 0;
    if (samples) {
      const Doing drawing(*flight_, Activity::kEvaluating);
      auto drawn = generate(*replica_, dataset_->tokenizer.get(), stop_);
      if (!drawn.ok()) return drawn.status();
      samples = drawn->has_value();
      outcome_.interrupted = !samples;
      if (samples) text = **std::move(drawn);
    }
    if (outcome_.interrupted && outcome_.step > 0) {
      absl::Status status = save_idle();
      if (status.ok()) status = finish_saves();
      if (!status.ok()) return status;
    }
    if (samples && leader()) {
      const absl::Status status = saved_->write_sample(spec_.sample().prompt() + text);
      if (!status.ok()) return status;
      v1::RankEvent event;
      v1::SampleReport& report = *event.mutable_sample();
      report.set_step(outcome_.step);
      report.set_prompt(spec_.sample().prompt());
      report.set_text(well_formed(text));  // A byte-level model may cut a character.
      const absl::Status written = events_.write(event);
      if (!written.ok()) return written;
    }
    v1::RankEvent event;
    event.mutable_finished()->set_step(outcome_.step);
    event.mutable_finished()->set_interrupted(outcome_.interrupted);
    return events_.write(event);
  }

  const v1::RankPlan& plan_;
  const v1::JobSpec& spec_;
  const parallel::Mesh mesh_;
  const plan::RunShape shape_;
  EventLog& events_;
  const std::atomic<bool>& stop_;
  const Replica::Execution execution_;
  const RunSeams& seams_;
  const std::unique_ptr<FlightLog> flight_;

  // In the order that they are made; destroyed the other way round.
  std::unique_ptr<backend::Device> device_;
  std::unique_ptr<backend::KeyValueStore> store_;
  std::vector<std::unique_ptr<backend::Communicator>> communicators_;  // By engine::GroupId.
  StepTrace trace_;
  std::optional<Dataset> dataset_;
  BlendPosition blend_;
  std::unique_ptr<Replica> replica_;
  checkpoint::LocalCommitter alone_;
  std::unique_ptr<checkpoint::PatientCommitter> coordinator_;  // Null: this rank is alone.
  std::unique_ptr<SavedState> saved_;
  std::unique_ptr<checkpoint::WeightSource> first_weights_;  // Until they are loaded.
  std::unique_ptr<Saves> saves_;
  std::unique_ptr<Curves> curves_;  // Of rank 0 alone.

  RunOutcome outcome_;
  uint64_t start_step_ = 0;
  uint64_t submitted_ = 0;      // Steps; up to engine::StepBuffers::kSlots more than outcome_.step.
  bool stopping_ = false;       // Some rank asked to.
  Clock::time_point last_end_;  // Of the last finished step.
  uint64_t consumed_samples_ = 0;
  std::optional<double> eval_loss_;     // Of an evaluation behind this very step.
  std::optional<uint64_t> saved_step_;  // Of the last checkpoint saved or resumed from.
  std::string resumed_from_;
  StepFacts facts_;
  int bad_steps_ = 0;
};

}  // namespace

absl::StatusOr<RunOutcome> run(const v1::RankPlan& plan, EventLog& events, const std::atomic<bool>& stop,
                               Replica::Execution execution, const RunSeams& seams) {
  return Run(plan, events, stop, execution, seams).execute();
}

}  // namespace telar::train
