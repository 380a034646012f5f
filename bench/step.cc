// A training step on one device, in this process, on random tokens: tokens/s, MFU, memory, and where the time goes.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "bench/flags.h"
#include "bench/profile.h"
#include "bench/spec.h"
#include "client/spec/reader.h"
#include "telar/v1/rank.pb.h"
#include "worker/backend/module.h"
#include "worker/plan/resolve.h"
#include "worker/train/replica.h"

namespace telar::bench {
namespace {

using Json = nlohmann::ordered_json;
using train::Replica;

constexpr const char* kUsage =
    "usage: bench_step (--preset NAME | --spec FILE | --plan FILE) [--backend cpu|cuda] [--steps N] [--warmup N]\n"
    "                  [--micro N] [--accum N] [--seq N] [--layers N] [--precision bf16|fp16|fp32] [--profile] [--json "
    "FILE]\n"
    "                  [--threads N] [--device N] [--executor lanes|sequential]\n"
    "NAME: gpt2-124m gpt2-350m gpt2-774m gpt2-1.5b qwen2.5-0.5b qwen2.5-1.5b llama3-8b small-gpt2 small-llama.\n"
    "--spec: a job as `telar submit` takes it; --plan: a RankPlan as `telar-rank` does. Both on one device.\n"
    "--micro: sequences of a micro-batch; --accum: micro-batches a step.\n";

struct Options {
  std::string label;  // What is measured: a preset or a file.
  std::string backend, executor, json;
  backend::DeviceOptions device;
  int64_t steps = 0, warmup = 0;
  bool profile = false;
  v1::JobSpec spec;  // Resolved.
};

absl::Status read_spec_from(const Flags& flags, const SpecRequest& request, v1::JobSpec& spec) {
  if (flags.has("plan")) {
    std::ifstream file(flags.text("plan", ""));
    std::stringstream text;
    text << file.rdbuf();
    v1::RankPlan plan;
    const auto parsed = google::protobuf::util::JsonStringToMessage(text.str(), &plan);
    if (!file || !parsed.ok()) {
      return absl::InvalidArgumentError("--plan: " + flags.text("plan", "") + ": " + parsed.message().ToString());
    }
    spec = plan.spec();
    return adapt_spec(request, spec);
  }
  if (flags.has("spec")) {
    const client::SpecReading reading = client::read_spec_file(flags.text("spec", ""), std::cin, spec);
    if (reading.problems.empty()) return adapt_spec(request, spec);
    return absl::InvalidArgumentError(client::to_string(reading.problems.front()));
  }
  auto made = make_spec(request);
  if (made.ok()) spec = *std::move(made);
  return made.status();
}

absl::StatusOr<Options> read_options(int argc, char** argv) {
  auto flags = Flags::parse(argc, argv,
                            {"preset", "spec", "plan", "backend", "steps", "warmup", "micro", "accum", "seq", "layers",
                             "precision", "json", "threads", "device", "executor"},
                            {"profile"});
  if (!flags.ok()) return flags.status();
  Options options{.backend = flags->text("backend", "cpu"),
                  .executor = flags->text("executor", "lanes"),
                  .json = flags->text("json", ""),
                  .profile = flags->has("profile")};
  absl::Status status;
  const auto take = [&](const char* name, int64_t absent, int64_t least) {
    const auto value = flags->number(name, absent, least);
    status.Update(value.status());
    return value.ok() ? *value : absent;
  };
  const bool gpu = options.backend != "cpu";
  const SpecRequest request{.preset = flags->text("preset", gpu ? "gpt2-124m" : "small-gpt2"),
                            .micro = take("micro", 0, 1),
                            .accumulate = take("accum", 0, 1),
                            .sequence = take("seq", 0, 1),
                            .layers = take("layers", 0, 1),
                            .precision = flags->text("precision", ""),
                            .gpu = gpu};
  options.label = flags->text("plan", flags->text("spec", request.preset));
  options.steps = take("steps", 10, 1);
  options.warmup = take("warmup", 3, 1);
  options.device.index = static_cast<int>(take("device", 0, 0));
  options.device.threads = static_cast<int>(take("threads", std::max(1u, std::thread::hardware_concurrency()), 1));
  if (options.executor != "lanes" && options.executor != "sequential") {
    status.Update(absl::InvalidArgumentError("--executor: got '" + options.executor + "', wanted lanes or sequential"));
  }
  if (status.ok()) status = read_spec_from(*flags, request, options.spec);
  if (!status.ok()) return status;
  return options;
}

// Random ids for inputs and targets; two sets, used in turn, so that making them takes no time of a step.
class Batches {
 public:
  Batches(const plan::RunShape& shape) {
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(shape.spec.model().vocab()) - 1);
    for (std::vector<int32_t>& ids : ids_) {
      ids.resize(static_cast<size_t>(shape.micro_batches * shape.micro_tokens()));
      for (int32_t& id : ids) id = any(random);
    }
  }
  const std::vector<int32_t>& inputs(uint64_t step) const { return ids_[step % 2]; }
  const std::vector<int32_t>& targets(uint64_t step) const { return ids_[(step + 1) % 2]; }

 private:
  std::vector<int32_t> ids_[2];
};

struct Steps {
  std::vector<double> seconds;  // Each from the end of the step before.
  double loss = 0;              // Of the last.
};

// The one place that knows how steps are issued. `behind` is called after each measured step.
absl::StatusOr<Steps> run_steps(Replica& replica, const Options& options, const std::function<absl::Status()>& behind) {
  const Batches batches(replica.shape());
  Steps steps;
  auto last_end = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < options.warmup + options.steps; ++i) {
    const auto step = static_cast<uint64_t>(i + 1);
    const auto result = replica.train_step(step, batches.inputs(step), batches.targets(step), false);
    if (!result.ok()) return result.status();
    const auto end = std::chrono::steady_clock::now();
    steps.loss = result->loss;
    if (i >= options.warmup) {
      steps.seconds.push_back(std::chrono::duration<double>(end - last_end).count());
      if (absl::Status status = behind(); !status.ok()) return status;
    }
    last_end = std::chrono::steady_clock::now();
  }
  return steps;
}

class Bench {
 public:
  Bench(const Options& options, backend::Device& device)
      : options_(options), device_(device), shape_(plan::run_shape(options.spec, {})) {}

  absl::Status run() {
    absl::Status status = measure();
    if (status.ok() && options_.profile) status = profile();
    return status;
  }

  void print() const {
    const v1::JobSpec& spec = options_.spec;
    fmt::print("{} on {}: {} parameters, {} x {} tokens x {} micro-batches a step, {}\n", options_.label,
               device_.info().model, plan::parameter_count(spec.model()), spec.batch().micro(),
               spec.batch().sequence_length(), shape_.micro_batches, std::string(backend::name_of(shape_.act)));
    fmt::print("step: median {:.3f} ms, least {:.3f}, most {:.3f}; loss {:.4f}\n", 1e3 * median(),
               1e3 * sorted().front(), 1e3 * sorted().back(), steps_.loss);
    fmt::print("tokens/s: {:.0f} by the median step, {:.0f} over all\n", tokens() / median(), tokens() / mean());
    if (peak() > 0) {
      fmt::print("MFU: {:.2f} % = tokens/s x {:.4g} FLOPs a token / {:.1f} TFLOP/s dense peak\n", 100 * mfu(),
                 flops_per_token(), peak() / 1e12);
    } else {
      fmt::print("MFU: none, no known peak; {:.4f} TFLOP/s of model FLOPs\n",
                 flops_per_token() * tokens() / median() / 1e12);
    }
    fmt::print(
        "     FLOPs a token = 6 P + 6 L H d T: P matrix parameters with the output head and without the input\n"
        "     embedding, causal attention counted once, recompute not counted\n");
    print_memory();
    if (options_.profile) fmt::print("\n{}", to_text(profile_));
  }

  Json json() const {
    Json memory = {{"plan", Json::object()},
                   {"plan_total", plan_total_},
                   {"used_before", used_before_},
                   {"used_after", used_after_}};
    for (int i = 0; i < engine::kMemoryClasses; ++i) {
      memory["plan"][std::string(engine::name_of(static_cast<engine::MemoryClass>(i)))] =
          arenas_[static_cast<size_t>(i)];
    }
    Json json = {{"device", device_.info().model},
                 {"backend", options_.backend},
                 {"label", options_.label},
                 {"dtype", std::string(backend::name_of(shape_.act))},
                 {"tokens_per_step", tokens()},
                 {"micro_batches", shape_.micro_batches},
                 {"sequence", options_.spec.batch().sequence_length()},
                 {"step_seconds", steps_.seconds},
                 {"median_seconds", median()},
                 {"tokens_per_second", tokens() / median()},
                 {"tokens_per_second_mean", tokens() / mean()},
                 {"flops_per_token", flops_per_token()},
                 {"mfu_convention", "6 P + 6 L H d T over the dense peak"},
                 {"loss", steps_.loss},
                 {"memory", memory}};
    if (peak() > 0) json["mfu"] = mfu();
    if (options_.profile) json["profile"] = profile_json();
    return json;
  }

 private:
  absl::StatusOr<std::unique_ptr<Replica>> make_replica(Replica::Execution execution) {
    auto replica = Replica::create(shape_, device_, {}, execution);
    if (!replica.ok()) return replica.status();
    if (absl::Status status = (*replica)->init(); !status.ok()) return status;
    return replica;
  }

  absl::Status measure() {
    const auto before = device_.free_bytes();
    if (!before.ok()) return before.status();
    const auto execution = options_.executor == "lanes" ? Replica::Execution::kLanes : Replica::Execution::kSequential;
    auto replica = make_replica(execution);
    if (!replica.ok()) return replica.status();
    arenas_ = (*replica)->train_plan().arena_bytes;
    plan_total_ = (*replica)->train_plan().total_bytes();
    auto steps = run_steps(**replica, options_, [] { return absl::OkStatus(); });
    if (!steps.ok()) return steps.status();
    steps_ = *std::move(steps);
    const auto after = device_.free_bytes();
    if (!after.ok()) return after.status();
    used_before_ = device_.info().memory_bytes - *before;
    used_after_ = device_.info().memory_bytes - *after;
    return absl::OkStatus();
  }

  absl::Status profile() {
    auto replica = make_replica(Replica::Execution::kProfiling);
    if (!replica.ok()) return replica.status();
    std::vector<double> sums((*replica)->train_program().ops().size(), 0);
    const auto add = [&] {
      const auto seconds = (*replica)->op_seconds();
      if (!seconds.ok()) return seconds.status();
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += (*seconds)[i];
      return absl::OkStatus();
    };
    const auto steps = run_steps(**replica, options_, add);
    if (!steps.ok()) return steps.status();
    const auto count = static_cast<double>(steps->seconds.size());
    for (double& sum : sums) sum /= count;
    double total = 0;
    for (double seconds : steps->seconds) total += seconds;
    profile_ = make_profile((*replica)->train_program(), sums, total / count);
    return absl::OkStatus();
  }

  void print_memory() const {
    constexpr double kMiB = 1 << 20;
    fmt::print("memory, MiB:");
    for (int i = 0; i < engine::kMemoryClasses; ++i) {
      fmt::print(" {} {:.1f}", std::string(engine::name_of(static_cast<engine::MemoryClass>(i))),
                 static_cast<double>(arenas_[static_cast<size_t>(i)]) / kMiB);
    }
    const double grown = static_cast<double>(used_after_) - static_cast<double>(used_before_);
    const auto total = static_cast<double>(plan_total_);
    if (options_.backend == "cpu") {
      fmt::print("\n     plan {:.1f}\n", total / kMiB);
      return;
    }
    fmt::print(
        "\n     plan {:.1f}; the device's use grew by {:.1f}, {:.1f} of it outside the plan; {:.1f} was in use "
        "before\n",
        total / kMiB, grown / kMiB, (grown - total) / kMiB, static_cast<double>(used_before_) / kMiB);
  }

  Json profile_json() const {
    Json kinds = Json::array();
    for (const KindTime& time : profile_.kinds) {
      kinds.push_back({{"op", time.kind},
                       {"kernel", time.kernel},
                       {"phase", time.phase},
                       {"count", time.count},
                       {"seconds", time.seconds},
                       {"flops", time.flops},
                       {"bytes", time.bytes}});
    }
    return {{"step_seconds", profile_.step_seconds},
            {"ops_seconds", profile_.ops_seconds},
            {"phases", profile_.phases},
            {"ops", kinds}};
  }

  double tokens() const { return static_cast<double>(shape_.micro_batches * shape_.micro_tokens()); }
  std::vector<double> sorted() const {
    std::vector<double> seconds = steps_.seconds;
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  }
  double median() const { return sorted()[steps_.seconds.size() / 2]; }
  double mean() const {
    double sum = 0;
    for (double seconds : steps_.seconds) sum += seconds;
    return sum / static_cast<double>(steps_.seconds.size());
  }
  double flops_per_token() const {
    return plan::flops_per_token(options_.spec.model(), options_.spec.batch().sequence_length());
  }
  double peak() const {
    const backend::DeviceInfo& info = device_.info();
    if (shape_.act == engine::DType::kF32) return info.peak_flops_f32;
    return shape_.act == engine::DType::kF16 ? info.peak_flops_f16 : info.peak_flops_bf16;
  }
  double mfu() const { return tokens() / median() * flops_per_token() / peak(); }

  const Options& options_;
  backend::Device& device_;
  const plan::RunShape shape_;
  Steps steps_;
  StepProfile profile_;
  std::array<uint64_t, engine::kMemoryClasses> arenas_{};
  uint64_t plan_total_ = 0, used_before_ = 0, used_after_ = 0;
};

absl::Status run(const Options& options) {
  auto device = backend::open_device(options.backend, options.device);
  if (!device.ok()) return device.status();
  Bench bench(options, **device);
  if (absl::Status status = bench.run(); !status.ok()) return status;
  bench.print();
  return options.json.empty() ? absl::OkStatus() : write_file(options.json, bench.json().dump(1) + "\n");
}

}  // namespace
}  // namespace telar::bench

int main(int argc, char** argv) {
  const auto options = telar::bench::read_options(argc, argv);
  if (!options.ok()) {
    std::cerr << std::string(options.status().message()) << "\n" << telar::bench::kUsage;
    return 2;
  }
  const absl::Status status = telar::bench::run(*options);
  if (status.ok()) return 0;
  std::cerr << "bench_step: " << std::string(status.message()) << "\n";
  return 1;
}
