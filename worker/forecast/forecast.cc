#include "worker/forecast/forecast.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/step_buffers.h"
#include "worker/engine/trace.h"
#include "worker/forecast/advice.h"
#include "worker/forecast/op_cost.h"
#include "worker/forecast/recorded.h"
#include "worker/forecast/replay.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/parallel/schedule_simulator.h"
#include "worker/plan/resolve.h"

namespace telar::forecast {
namespace {

using engine::MemoryClass;
using engine::Phase;

int64_t micro_batches_of(const v1::JobSpec& spec) {
  return spec.batch().global() / spec.parallel().data() / spec.batch().micro();
}

v1::JobSpec with_micro_batches(v1::JobSpec spec, int64_t count) {
  spec.mutable_batch()->set_global(static_cast<uint32_t>(count) * spec.parallel().data() * spec.batch().micro());
  return spec;
}

// Of the tensor ranks the one with the largest share; the last gets what does not divide.
parallel::Mesh mesh_of(const v1::JobSpec& spec, int pipeline_rank) {
  const v1::ParallelSpec& parallel = spec.parallel();
  const uint32_t tensor = parallel.tensor();
  const bool even = spec.model().ffn() % tensor == 0 && spec.model().vocab() % tensor == 0;
  return {.dp_size = static_cast<int>(parallel.data()),
          .pp_size = static_cast<int>(parallel.pipeline()),
          .tp_size = static_cast<int>(tensor),
          .dp = 0,
          .pp = pipeline_rank,
          .tp = even ? 0 : static_cast<int>(tensor) - 1};
}

struct Recorded {
  int64_t micro_batches = 0;
  std::vector<RecordedRank> ranks;
  std::vector<PaperRank> papers;  // Of the same.
};

// All pipeline ranks, on as many threads as there are cores.
absl::StatusOr<Recorded> record(const v1::JobSpec& spec, const v1::ClusterShape& cluster, bool memory) {
  const size_t count = spec.parallel().pipeline();
  std::vector<std::optional<absl::StatusOr<RecordedRank>>> results(count);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t p = next++; p < count; p = next++) {
      results[p] = record_rank(plan::run_shape(spec, mesh_of(spec, static_cast<int>(p))), cluster, memory);
    }
  };
  std::vector<std::thread> helpers(std::min<size_t>(count, std::max(1u, std::thread::hardware_concurrency())) - 1);
  for (std::thread& helper : helpers) helper = std::thread(work);
  work();
  for (std::thread& helper : helpers) helper.join();

  Recorded recorded{.micro_batches = micro_batches_of(spec)};
  for (auto& result : results) {
    if (!result->ok()) return result->status();
    recorded.ranks.push_back(**std::move(result));
    recorded.papers.push_back(std::move(recorded.ranks.back().paper));
  }
  return recorded;
}

// With so many micro-batches a schedule has come to rhythm: each more takes the same time and no more memory.
int64_t rhythm(const v1::JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  if (parallel.schedule() == "gpipe" || parallel.schedule() == "custom") return micro_batches_of(spec);
  return parallel.pipeline() == 1 ? 6 : 3 * int64_t{parallel.pipeline()};
}

// How many micro-batches tell the time of more, beside `enough`: one round of the pipeline less, or, where stages are
// virtual and the rhythm is later, one more.
int64_t beside(const v1::JobSpec& spec, int64_t enough) {
  const int64_t round = std::max<int64_t>(2, spec.parallel().pipeline());
  return spec.parallel().schedule() == "interleaved" ? enough + round : enough - round;
}

// a x + (1 - a) y of all that is measured in time.
PaperTimes mix(const PaperTimes& x, const PaperTimes& y, double a) {
  PaperTimes mixed = x;
  const auto one = [a](double& value, double other) { value = std::max(0.0, a * value + (1 - a) * other); };
  one(mixed.step, y.step);
  for (size_t r = 0; r < mixed.ranks.size(); ++r) {
    for (size_t i = 0; i < kPhases; ++i) {
      one(mixed.ranks[r].busy[i], y.ranks[r].busy[i]);
      one(mixed.ranks[r].waiting[i], y.ranks[r].waiting[i]);
    }
  }
  return mixed;
}

// Of a step that may have been recorded at two lengths, to be extrapolated from.
class Timer {
 public:
  Timer(const Recorded& first, const std::optional<Recorded>& second, int64_t micro_batches)
      : first_(first), second_(second), micro_batches_(micro_batches) {}

  absl::StatusOr<PaperTimes> times(const std::vector<double>& clocks) const {
    auto times = replay(first_.papers, clocks);
    if (!times.ok() || !second_) return times;
    const auto others = replay(second_->papers, clocks);
    if (!others.ok()) return others.status();
    const int64_t count = second_->micro_batches;
    return mix(*times, *others,
               static_cast<double>(micro_batches_ - count) / static_cast<double>(first_.micro_batches - count));
  }

 private:
  const Recorded& first_;
  const std::optional<Recorded>& second_;
  const int64_t micro_batches_;
};

// What each rank's clock is where it waits for so long.
std::vector<double> clocks_of(const PaperTimes& times, const v1::Rates& rates) {
  std::vector<double> clocks;
  for (const PaperTimes::Rank& rank : times.ranks) {
    clocks.push_back(clock_of(rates, std::accumulate(rank.busy.begin(), rank.busy.end(), 0.0) / times.step));
  }
  return clocks;
}

class Writer {
 public:
  Writer(const v1::JobSpec& spec, const v1::ClusterShape& cluster, const Recorded& recorded, const PaperTimes& times)
      : spec_(spec), cluster_(cluster), recorded_(recorded), times_(times) {}

  absl::StatusOr<v1::Forecast> write() {
    *result_.mutable_spec() = spec_;
    result_.set_parameters(plan::parameter_count(spec_.model()));
    result_.set_device_bytes(cluster_.rates().memory_bytes() - cluster_.rates().reserved_bytes());
    result_.set_recorded_micro_batches(static_cast<uint32_t>(recorded_.micro_batches));
    result_.set_fits(true);
    for (size_t p = 0; p < recorded_.ranks.size(); ++p) rank(p);
    rates();
    time();
    if (absl::Status status = bubbles(); !status.ok()) return status;
    for (v1::Advice& advice : advise(result_, cluster_)) *result_.add_advice() = std::move(advice);
    return std::move(result_);
  }

 private:
  // Of the batch, which has room for the whole step on the device, and twice more on its way there.
  uint64_t batch_bytes_not_recorded() const {
    const int64_t more = micro_batches_of(spec_) - recorded_.micro_batches;
    const uint64_t tensors = spec_.data().reset_at_documents() ? 3 : 2;
    return static_cast<uint64_t>(more) * tensors * spec_.batch().micro() * spec_.batch().sequence_length() * 4 *
           (1 + engine::StepBuffers::kSlots);
  }

  void rank(size_t p) {
    const RecordedRank& from = recorded_.ranks[p];
    const PaperTimes::Rank& times = times_.ranks[p];
    v1::RankForecast& to = *result_.add_ranks();
    to.set_pipeline_rank(static_cast<uint32_t>(p));
    to.set_layers(from.layers);
    to.set_ops(from.ops);
    uint64_t total = from.evaluation_bytes;
    for (int i = 0; i < engine::kMemoryClasses; ++i) {
      const auto memory_class = static_cast<MemoryClass>(i);
      uint64_t bytes = from.arena_bytes[static_cast<size_t>(i)];
      if (memory_class == MemoryClass::kIo) bytes += batch_bytes_not_recorded();
      if (memory_class != MemoryClass::kHost) total += bytes;
      if (bytes > 0) add_memory(to, std::string(engine::name_of(memory_class)), bytes);
    }
    add_memory(to, "evaluation", from.evaluation_bytes);
    to.set_total_bytes(total);
    if (total > result_.device_bytes()) result_.set_fits(false);

    const auto busy = [&](Phase phase) { return times.busy[static_cast<size_t>(phase)]; };
    const auto waiting = [&](Phase phase) { return times.waiting[static_cast<size_t>(phase)]; };
    to.set_forward(busy(Phase::kForward));
    to.set_backward(busy(Phase::kBackward));
    to.set_recompute(busy(Phase::kRecompute));
    to.set_optimizer(busy(Phase::kOptimizer) + waiting(Phase::kOptimizer));
    to.set_exposed_gradients(waiting(Phase::kGradComm) + waiting(Phase::kWeightComm));
    to.set_exposed_tensor(waiting(Phase::kTensorComm));
    to.set_exposed_pipeline(waiting(Phase::kPipelineComm));
    const double all = std::accumulate(times.busy.begin(), times.busy.end(), 0.0) +
                       std::accumulate(times.waiting.begin(), times.waiting.end(), 0.0);
    to.set_other(all - to.forward() - to.backward() - to.recompute() - to.optimizer() - to.exposed_gradients() -
                 to.exposed_tensor() - to.exposed_pipeline());
  }

  void rates() {
    const auto add = [&](const char* name, v1::RateOrigin origin) {
      v1::UsedRates& used = *result_.add_rates();
      used.set_rates(name);
      used.set_origin(origin);
    };
    const v1::Rates& rates = cluster_.rates();
    add("device", rates.origin());
    if (std::ranges::any_of(recorded_.ranks, &RecordedRank::uses_domain)) add("domain", rates.domain().origin());
    if (std::ranges::any_of(recorded_.ranks, &RecordedRank::uses_network)) add("network", rates.network().origin());
  }

  static void add_memory(v1::RankForecast& rank, const std::string& memory_class, uint64_t bytes) {
    v1::MemoryForecast& memory = *rank.add_memory();
    memory.set_memory_class(memory_class);
    memory.set_bytes(bytes);
  }

  void time() {
    const auto step_tokens = uint64_t{spec_.batch().global()} * spec_.batch().sequence_length();
    const double devices = spec_.resources().devices(), seconds = times_.step;
    result_.set_step_seconds(seconds);
    result_.set_tokens_per_second(static_cast<double>(step_tokens) / seconds);
    result_.set_flops_per_token(plan::flops_per_token(spec_.model(), spec_.batch().sequence_length()));
    const v1::Rates& rates = cluster_.rates();
    double peak = spec_.precision().compute() == v1::FP32 ? rates.peak_flops_fp32() : rates.peak_flops_16();
    if (spec_.precision().compute() == v1::FP8) {
      const double share = plan::fp8_flops_share(spec_);
      peak = rates.peak_flops_fp8() > 0 ? 1 / (share / rates.peak_flops_fp8() + (1 - share) / peak) : 0;
    }
    if (peak > 0) result_.set_mfu(result_.tokens_per_second() * result_.flops_per_token() / (devices * peak));
    result_.set_tokens(step_tokens * spec_.schedule().steps());
    result_.set_run_seconds(static_cast<double>(spec_.schedule().steps()) * seconds);
    result_.set_device_hours(result_.run_seconds() * devices / 3600);
  }

  absl::Status bubbles() {
    const v1::ParallelSpec& parallel = spec_.parallel();
    if (parallel.pipeline() == 1) return absl::OkStatus();
    double waits = 0;
    for (const v1::RankForecast& rank : result_.ranks()) waits += rank.exposed_pipeline();
    result_.set_bubble(waits / result_.ranks_size() / times_.step);
    if (parallel.schedule() == "custom") return absl::OkStatus();
    const auto schedule =
        parallel::make_schedule(parallel.schedule(), static_cast<int>(parallel.pipeline()),
                                static_cast<int>(parallel.virtual_stages()), static_cast<int>(micro_batches_of(spec_)));
    if (!schedule.ok()) return schedule.status();
    parallel::ScheduleCosts costs;
    costs.stages.resize(static_cast<size_t>(schedule->stages));
    for (const RecordedRank& rank : recorded_.ranks) {
      for (const auto& [stage, cost] : rank.stages) costs.stages[static_cast<size_t>(stage)] = cost;
    }
    const auto simulated = parallel::simulate(*schedule, costs);
    if (!simulated.ok()) return simulated.status();
    result_.set_bubble_by_schedule(simulated->bubble_fraction);
    return absl::OkStatus();
  }

  const v1::JobSpec& spec_;
  const v1::ClusterShape& cluster_;
  const Recorded& recorded_;
  const PaperTimes& times_;
  v1::Forecast result_;
};

}  // namespace

absl::StatusOr<v1::Forecast> forecast(const v1::JobSpec& resolved, const v1::ClusterShape& cluster,
                                      const ForecastOptions& options) {
  const uint64_t there = uint64_t{cluster.nodes()} * cluster.devices();
  if (resolved.resources().devices() > there) {
    return absl::InvalidArgumentError(absl::StrCat("resources.devices: ", resolved.resources().devices(),
                                                   " devices are wanted, the cluster has ", cluster.nodes(), " x ",
                                                   cluster.devices(), " = ", there));
  }
  const int64_t all = micro_batches_of(resolved), enough = options.may_shorten ? rhythm(resolved) : all;
  auto recorded = record(with_micro_batches(resolved, std::min(all, enough)), cluster, true);
  if (!recorded.ok()) return recorded.status();
  std::optional<Recorded> second;
  if (all > enough) {
    auto other = record(with_micro_batches(resolved, beside(resolved, enough)), cluster, false);
    if (!other.ok()) return other.status();
    second = *std::move(other);
  }
  const Timer timer(*recorded, second, all);
  auto times = timer.times({});
  if (times.ok()) times = timer.times(clocks_of(*times, cluster.rates()));
  if (!times.ok()) return times.status();
  return Writer(resolved, cluster, *recorded, *times).write();
}

}  // namespace telar::forecast
