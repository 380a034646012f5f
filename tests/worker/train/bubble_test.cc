// The bubble of a pipeline as it runs against the one that the simulator forecasts from the times of its stages.
//
// Ranks are threads that share few cores, so a product's time is a sleep: ranks then compute beside each other as
// devices do, and all else, from the schedule to the transfers, is what trains.
#include <gmock/gmock.h>

#include <barrier>
#include <chrono>
#include <thread>

#include "tests/worker/train/layouts.h"
#include "worker/engine/account.h"
#include "worker/engine/op_timer.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/parallel/schedule_simulator.h"

namespace telar::train {
namespace {

using backend::Kernels;
using parallel::ScheduleForecast;
using parallel::StageCost;

constexpr uint32_t kLayers = 8, kMicroBatches = 8, kSequence = 8, kVocab = 32;
constexpr int kProductsOfALayer = 4;                  // Forward; as many for the input's gradient and for the weights'.
constexpr std::chrono::microseconds kForward{12000};  // Of all of a rank's layers.
constexpr int kAttempts = 10;                         // One of them must find the machine undisturbed.
constexpr double kBound = 0.1;

bool is_wgrad(const engine::Op& op) { return op.kernel == engine::KernelId(&Kernels::linear_wgrad); }
bool is_product_of_layer(const engine::Op& op) {
  return op.name.find("/layers.") != std::string::npos &&
         (is_wgrad(op) || op.kernel == engine::KernelId(&Kernels::linear) ||
          op.kernel == engine::KernelId(&Kernels::linear_gelu) ||
          op.kernel == engine::KernelId(&Kernels::linear_dgrad));
}

// Times a run, and makes each product of a layer take longer. Sleeps end at times counted from the first of an action,
// so that waking up late once makes the action late once.
class SleepingTimer final : public engine::RunObserver {
 public:
  SleepingTimer(const engine::Program& program, std::unique_ptr<engine::OpTimer> timer, std::chrono::microseconds time)
      : program_(program), timer_(std::move(timer)), time_(time) {}
  void begin(backend::Stream& origin) override { timer_->begin(origin); }
  void before(engine::OpId op, backend::Stream& lane) override {
    timer_->before(op, lane);
    const engine::Op& what = program_.ops()[op];
    if (!is_product_of_layer(what)) return;
    const auto action = std::pair(what.name.substr(0, what.name.find('/')), what.phase);
    lane.submit(std::exchange(last_action_, action) == action ? go_on_ : start_);
  }
  void after(engine::OpId op, backend::Stream& lane) override { timer_->after(op, lane); }
  void end(backend::Stream& origin) override { timer_->end(origin); }
  absl::StatusOr<engine::RunTimes> times() { return timer_->times(); }

 private:
  using Work = std::function<absl::Status(backend::Stream&)>;
  absl::Status sleep() {
    until_ += time_;
    std::this_thread::sleep_until(until_);
    return absl::OkStatus();
  }

  const engine::Program& program_;
  const std::unique_ptr<engine::OpTimer> timer_;
  const std::chrono::microseconds time_;
  std::pair<std::string, engine::Phase> last_action_;
  std::chrono::steady_clock::time_point until_;  // Of the lane's thread.
  const Work start_ = [this](backend::Stream&) {
    until_ = std::chrono::steady_clock::now();
    return sleep();
  };
  const Work go_on_ = [this](backend::Stream&) { return sleep(); };
};

struct Pipeline {
  const char* schedule;
  uint32_t ranks;
  uint32_t each = 1;  // Stages a rank.
};

v1::JobSpec spec_of(const Pipeline& pipeline) {
  v1::JobSpec spec;
  spec.set_name("x");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture(v1::GPT2);
  model.set_layers(kLayers);
  model.set_heads(2);
  model.set_hidden(16);
  model.set_ffn(16);
  model.set_vocab(kVocab);
  model.set_tied_head(false);
  spec.mutable_data()->add_train("/x");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(kMicroBatches);
  spec.mutable_batch()->set_micro(1);
  spec.mutable_batch()->set_sequence_length(kSequence);
  spec.mutable_schedule()->set_steps(kAttempts + 1);
  spec.mutable_precision()->set_compute(v1::FP32);
  spec.mutable_resources()->set_devices(pipeline.ranks);
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_pipeline(pipeline.ranks);
  parallel.set_schedule(pipeline.schedule);
  parallel.set_virtual_stages(pipeline.each);
  const uint32_t stages = pipeline.ranks * pipeline.each;
  for (uint32_t s = 0; s < stages; ++s) parallel.add_stage_layers(kLayers / stages);
  EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), ::testing::IsEmpty());
  return spec;
}

// What one step of all ranks took.
struct Measured {
  std::vector<StageCost> stages;  // Means over the micro-batches.
  double start = 1e300, end = 0;  // Of the first and the last action.
  std::vector<double> busy;       // By rank.
  double accounted = 0;           // Mean over ranks of what their accounts say: what a job reports.

  double makespan() const { return end - start; }
  double idle(size_t rank) const { return makespan() - busy[rank]; }
  double bubble_fraction() const {
    double idle_time = 0;
    for (size_t rank = 0; rank < busy.size(); ++rank) idle_time += idle(rank);
    return idle_time / (makespan() * static_cast<double>(busy.size()));
  }
};

// Adds one rank's actions: ops called "s<stage>.mb<micro-batch>/..." on the compute lane.
void add(const engine::Program& program, const engine::RunTimes& times, int rank, Measured& measured) {
  for (engine::OpId op = 0; op < program.ops().size(); ++op) {
    const engine::Op& what = program.ops()[op];
    if (what.lane.kind != engine::LaneKind::kCompute || what.name.rfind('s', 0) != 0) continue;
    if (what.phase != engine::Phase::kForward && what.phase != engine::Phase::kBackward) continue;
    StageCost& cost = measured.stages[static_cast<size_t>(std::stoi(what.name.substr(1)))];
    const double start = times.ops[op].start, stop = times.ops[op].stop, seconds = stop - start;
    double& part = what.phase == engine::Phase::kForward ? cost.forward
                   : is_wgrad(what)                      ? cost.weight_grad
                                                         : cost.input_grad;
    part += seconds / kMicroBatches;
    measured.busy[static_cast<size_t>(rank)] += seconds;
    measured.start = std::min(measured.start, times.start + start);
    measured.end = std::max(measured.end, times.start + stop);
  }
}

void account(const Replica& replica, const engine::RunTimes& times, Measured& measured) {
  engine::Trace trace = engine::make_trace(replica.train_program(), replica.train_plan(), {}, 0);
  engine::set_times(trace, times);
  const engine::PipelineUse use = engine::account_of(trace).pipeline;
  const double idle = use.warmup_idle + use.steady_idle + use.cooldown_idle;
  measured.accounted += idle / use.window / static_cast<double>(measured.busy.size());
}

// Relative to the forecast; of ranks' idle times relative to the mean one, for a rank may have next to none.
double worst_difference(const Measured& step, const ScheduleForecast& forecast, std::string& report) {
  const auto difference = [](double got, double want, double of) { return std::abs(got - want) / of; };
  double worst = std::max(difference(step.makespan(), forecast.makespan, forecast.makespan),
                          difference(step.bubble_fraction(), forecast.bubble_fraction, forecast.bubble_fraction));
  absl::StrAppend(&report, "makespan ", step.makespan(), ", forecast ", forecast.makespan, "; bubble ",
                  step.bubble_fraction(), ", accounted ", step.accounted, ", forecast ", forecast.bubble_fraction,
                  "; idle by rank:");
  worst = std::max(worst, difference(step.accounted, forecast.bubble_fraction, forecast.bubble_fraction));
  for (size_t rank = 0; rank < forecast.ranks.size(); ++rank) {
    const double idle = forecast.ranks[rank].idle;
    worst = std::max(worst, difference(step.idle(rank), idle, forecast.bubble_fraction * forecast.makespan));
    absl::StrAppend(&report, " ", step.idle(rank), " (", idle, ")");
  }
  absl::StrAppend(&report, "; worst difference ", worst, "\n");
  return worst;
}

class BubbleTest : public ::testing::TestWithParam<Pipeline> {
 protected:
  // One step on this rank, together with the others.
  void take_step(uint64_t number, int rank, Replica& replica, std::chrono::microseconds product) {
    const auto device = backend::cpu::create_device({}, nullptr, nullptr);
    auto timer = engine::OpTimer::create(replica.train_plan(), *device);
    ASSERT_TRUE(timer.ok());
    SleepingTimer sleeping(replica.train_program(), *std::move(timer), product);
    replica.observe_next_step(sleeping);
    together_.arrive_and_wait();
    const auto done = replica.train_step(number, ids_, ids_, false);
    ASSERT_TRUE(done.ok()) << done.status();
    const auto times = sleeping.times();
    ASSERT_TRUE(times.ok()) << times.status();
    const std::lock_guard lock(mutex_);
    add(replica.train_program(), *times, rank, measured_);
    account(replica, *times, measured_);
  }

  const std::vector<int32_t> ids_ = std::vector<int32_t>(kMicroBatches * kSequence, 3);
  std::barrier<> together_{static_cast<std::ptrdiff_t>(GetParam().ranks)};
  std::mutex mutex_;
  Measured measured_;    // Guarded by mutex_.
  double best_ = 1e300;  // Written by rank 0 while the others wait.
  std::string report_;
};

TEST_P(BubbleTest, IsWhatTheSimulatorForecasts) {
  const Pipeline& pipeline = GetParam();
  const auto schedule = parallel::make_schedule(pipeline.schedule, static_cast<int>(pipeline.ranks),
                                                static_cast<int>(pipeline.each), kMicroBatches);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const auto reset = [&] {
    measured_ = {std::vector<StageCost>(pipeline.ranks * pipeline.each), 1e300, 0, std::vector<double>(pipeline.ranks),
                 0};
  };
  reset();
  const std::chrono::microseconds product = kForward / (kProductsOfALayer * kLayers / pipeline.ranks);
  fakes::ThreadCommunicators communicators;
  testing::on_all_ranks(spec_of(pipeline), testing::options_of(communicators), [&](int rank, Replica& replica) {
    ASSERT_TRUE(replica.init().ok());
    ASSERT_TRUE(replica.train_step(1, ids_, ids_, false).ok());  // Whatever is made at first use.
    for (uint64_t attempt = 0; attempt < kAttempts && best_ >= kBound; ++attempt) {
      take_step(2 + attempt, rank, replica, product);
      together_.arrive_and_wait();
      if (rank == 0) {
        const auto forecast = parallel::simulate(*schedule, {.stages = measured_.stages});
        EXPECT_TRUE(forecast.ok()) << forecast.status();
        if (forecast.ok()) best_ = std::min(best_, worst_difference(measured_, *forecast, report_));
        reset();
      }
      together_.arrive_and_wait();
    }
  });
  EXPECT_LT(best_, kBound) << report_;
}

INSTANTIATE_TEST_SUITE_P(Pipelines, BubbleTest,
                         ::testing::Values(Pipeline{"gpipe", 2}, Pipeline{"1f1b", 2}, Pipeline{"interleaved", 2, 2},
                                           Pipeline{"zb-h1", 2}, Pipeline{"zb-v", 2, 2}, Pipeline{"gpipe", 4},
                                           Pipeline{"1f1b", 4}, Pipeline{"interleaved", 4, 2}, Pipeline{"zb-h1", 4},
                                           Pipeline{"zb-v", 4, 2}),
                         [](const auto& tested) {
                           std::string name = tested.param.schedule;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::to_string(tested.param.ranks);
                         });

}  // namespace
}  // namespace telar::train
