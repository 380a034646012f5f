// A training step on one device, in this process, on random tokens: tokens/s, MFU, memory, and where the time goes.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
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
    "                  [--micro N] [--accum N] [--seq N] [--layers N] [--precision bf16|fp16|fp32|fp8[-RECIPE]] "
    "[--profile] "
    "[--json "
    "FILE]\n"
    "                  [--threads N] [--device N] [--executor lanes|sequential] [--documents N]\n"
    "NAME: gpt2-124m gpt2-350m gpt2-774m gpt2-1.5b qwen2.5-0.5b qwen2.5-1.5b llama3-8b small-gpt2 small-llama.\n"
    "--spec: a job as `telar submit` takes it; --plan: a RankPlan as `telar-rank` does. Both on one device.\n"
    "--micro: sequences of a micro-batch; --accum: micro-batches a step. --documents: they are kept apart, of N "
    "tokens\n"
    "each on average.\n";

struct Options {
  std::string label;  // What is measured: a preset or a file.
  std::string backend, executor, json;
  backend::DeviceOptions device;
  int64_t steps = 0, warmup = 0, document_tokens = 0;
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
                             "precision", "json", "threads", "device", "executor", "documents"},
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
                            .documents = flags->has("documents"),
                            .precision = flags->text("precision", ""),
                            .gpu = gpu};
  options.label = flags->text("plan", flags->text("spec", request.preset));
  options.steps = take("steps", 10, 1);
  options.warmup = take("warmup", 3, 1);
  options.document_tokens = take("documents", 512, 1);
  options.device.index = static_cast<int>(take("device", 0, 0));
  options.device.threads = static_cast<int>(take("threads", std::max(1u, std::thread::hardware_concurrency()), 1));
  if (options.executor != "lanes" && options.executor != "sequential") {
    status.Update(absl::InvalidArgumentError("--executor: got '" + options.executor + "', wanted lanes or sequential"));
  }
  if (status.ok()) status = read_spec_from(*flags, request, options.spec);
  if (!status.ok()) return status;
  return options;
}

// Random ids for inputs and targets; two sets, used in turn, so that making them takes no time of a step. Where it
// matters, a new document starts at each token with the chance that makes them `document_tokens` long.
class Batches {
 public:
  Batches(const plan::RunShape& shape, int64_t document_tokens) {
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(shape.spec.model().vocab()) - 1);
    for (std::vector<int32_t>& ids : ids_) {
      ids.resize(static_cast<size_t>(shape.micro_batches * shape.micro_tokens()));
      for (int32_t& id : ids) id = any(random);
    }
    if (!shape.spec.data().reset_at_documents()) return;
    const auto sequence = static_cast<int32_t>(shape.spec.batch().sequence_length());
    std::bernoulli_distribution begins(1.0 / static_cast<double>(document_tokens));
    for (std::vector<int32_t>& starts : starts_) {
      for (size_t t = 0; t < ids_[0].size(); ++t) {
        const auto place = static_cast<int32_t>(t % static_cast<size_t>(sequence));
        starts.push_back(place == 0 || begins(random) ? place : starts.back());
      }
    }
  }
  const std::vector<int32_t>& inputs(uint64_t step) const { return ids_[step % 2]; }
  const std::vector<int32_t>& targets(uint64_t step) const { return ids_[(step + 1) % 2]; }
  const std::vector<int32_t>& starts(uint64_t step) const { return starts_[step % 2]; }

 private:
  std::vector<int32_t> ids_[2], starts_[2];
};

struct Steps {
  std::vector<double> seconds;  // Of the device, each from the end of the step before; with `behind`, from its start.
  std::vector<double> gaps;     // The part of it in which the device had not been given the step.
  double loss = 0;              // Of the last.
};

// A step's place on the device's clock.
struct Marks {
  std::unique_ptr<backend::Event> start, end;
};

absl::StatusOr<std::vector<Marks>> make_marks(backend::Device& device, int64_t count) {
  std::vector<Marks> marks(static_cast<size_t>(count));
  for (Marks& one : marks) {
    for (std::unique_ptr<backend::Event>* event : {&one.start, &one.end}) {
      auto made = device.create_timed_event();
      if (!made.ok()) return made.status();
      *event = *std::move(made);
    }
  }
  return marks;
}

// The one place that knows how steps are issued. `behind`, unless empty, is called after each measured step, with none
// in flight; else two are, as in training.
absl::StatusOr<Steps> run_steps(Replica& replica, backend::Device& device, const Options& options,
                                const std::function<absl::Status()>& behind) {
  const Batches batches(replica.shape(), options.document_tokens);
  const int64_t count = options.warmup + options.steps;
  const auto marks = make_marks(device, count);
  if (!marks.ok()) return marks.status();
  const int64_t most_in_flight = behind ? 1 : 2;
  Steps steps;
  for (int64_t submitted = 0, finished = 0; finished < count;) {
    while (submitted < count && submitted - finished < most_in_flight) {
      const auto step = static_cast<uint64_t>(submitted + 1);
      const Marks& mark = (*marks)[static_cast<size_t>(submitted++)];
      replica.step_stream().record(*mark.start);
      const absl::Status status =
          replica.submit_step(step, batches.inputs(step), batches.targets(step), false, batches.starts(step));
      if (!status.ok()) return status;
      replica.step_stream().record(*mark.end);
    }
    const auto result = replica.finish_step();
    if (!result.ok()) return result.status();
    steps.loss = result->loss;
    if (++finished <= options.warmup || !behind) continue;
    if (absl::Status status = behind(); !status.ok()) return status;
  }
  for (auto i = static_cast<size_t>(options.warmup); i < marks->size(); ++i) {
    backend::Event& before = *(*marks)[i - 1].end;
    const auto gap = device.seconds_between(before, *(*marks)[i].start);
    // What is done behind a step is no part of the next.
    const auto all = device.seconds_between(behind ? *(*marks)[i].start : before, *(*marks)[i].end);
    if (!gap.ok() || !all.ok()) return gap.ok() ? all.status() : gap.status();
    steps.gaps.push_back(*gap);
    steps.seconds.push_back(*all);
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
               spec.batch().sequence_length(), shape_.micro_batches, precision());
    fmt::print("step: median {:.3f} ms, least {:.3f}, most {:.3f}; loss {:.4f}\n", 1e3 * median(),
               1e3 * sorted().front(), 1e3 * sorted().back(), steps_.loss);
    fmt::print("host gap: for {:.3f} % of the time the device had not been given its next step; {}\n",
               100 * gap_share(),
               graph_.captured ? fmt::format("replayed from a graph of {} nodes", graph_.nodes)
                               : fmt::format("no graph: {}", graph_.why_not));
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
                   {"staging", staging_bytes_},
                   {"workspaces", overhead_.workspaces},
                   {"context", overhead_.context}};
    for (int i = 0; i < engine::kMemoryClasses; ++i) {
      memory["plan"][std::string(engine::name_of(static_cast<engine::MemoryClass>(i)))] =
          arenas_[static_cast<size_t>(i)];
    }
    Json json = {{"device", device_.info().model},
                 {"backend", options_.backend},
                 {"label", options_.label},
                 {"dtype", precision()},
                 {"tokens_per_step", tokens()},
                 {"micro_batches", shape_.micro_batches},
                 {"sequence", options_.spec.batch().sequence_length()},
                 {"step_seconds", steps_.seconds},
                 {"gap_seconds", steps_.gaps},
                 {"gap_share", gap_share()},
                 {"graph", {{"captured", graph_.captured}, {"nodes", graph_.nodes}, {"why_not", graph_.why_not}}},
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
    const auto execution = options_.executor == "lanes" ? Replica::Execution::kLanes : Replica::Execution::kSequential;
    auto replica = make_replica(execution);
    if (!replica.ok()) return replica.status();
    arenas_ = (*replica)->train_plan().arena_bytes;
    plan_total_ = (*replica)->train_plan().total_bytes();
    auto steps = run_steps(**replica, device_, options_, nullptr);
    if (!steps.ok()) return steps.status();
    steps_ = *std::move(steps);
    graph_ = (*replica)->graph_state();
    staging_bytes_ = (*replica)->staging_bytes();
    const auto overhead = device_.overhead();
    if (overhead.ok()) overhead_ = *overhead;
    return overhead.status();
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
    const auto steps = run_steps(**replica, device_, options_, add);
    if (!steps.ok()) return steps.status();
    const auto count = static_cast<double>(steps->seconds.size());
    for (double& sum : sums) sum /= count;
    const double total = std::accumulate(steps->seconds.begin(), steps->seconds.end(), 0.0);
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
    fmt::print(
        "\n     plan {:.1f}, beside it: staging {:.1f}, workspaces of kernels and libraries {:.1f}, context {:.1f}\n",
        static_cast<double>(plan_total_) / kMiB, static_cast<double>(staging_bytes_) / kMiB,
        static_cast<double>(overhead_.workspaces) / kMiB, static_cast<double>(overhead_.context) / kMiB);
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
    return std::accumulate(steps_.seconds.begin(), steps_.seconds.end(), 0.0) /
           static_cast<double>(steps_.seconds.size());
  }
  double gap_share() const {
    const auto sum = [](const std::vector<double>& values) {
      return std::accumulate(values.begin(), values.end(), 0.0);
    };
    return sum(steps_.gaps) / sum(steps_.seconds);
  }
  double flops_per_token() const {
    return plan::flops_per_token(options_.spec.model(), options_.spec.batch().sequence_length());
  }
  std::string precision() const {
    if (!shape_.uses_fp8()) return std::string(backend::name_of(shape_.act));
    return shape_.fp8.blocks ? "fp8-block" : shape_.scales_are_delayed() ? "fp8-delayed" : "fp8";
  }
  double peak() const { return plan::peak_flops(shape_, device_.info()); }
  double mfu() const { return tokens() / median() * flops_per_token() / peak(); }

  const Options& options_;
  backend::Device& device_;
  const plan::RunShape shape_;
  Steps steps_;
  StepProfile profile_;
  std::array<uint64_t, engine::kMemoryClasses> arenas_{};
  uint64_t plan_total_ = 0, staging_bytes_ = 0;
  backend::DeviceOverhead overhead_;
  engine::GraphState graph_;
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
