// Every kernel at the sizes of a model: the ops of its recorded training step, one by one, beside the ceilings of this
// device in this run (a large copy, a large product).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <thread>

#include "bench/flags.h"
#include "bench/measure.h"
#include "bench/ops.h"
#include "bench/sectors.h"
#include "bench/spec.h"
#include "worker/backend/module.h"
#include "worker/plan/programs.h"

namespace telar::bench {
namespace {

using backend::Kernels;
using engine::DType;
using engine::MemoryClass;
using Json = nlohmann::ordered_json;

constexpr const char* kUsage =
    "usage: bench_kernels [--backend cpu|cuda] [--dtype f32|bf16|f16|fp8[-RECIPE]] [--shapes PRESET] [--tokens N] "
    "[--filter "
    "REGEX]\n"
    "                     [--json FILE] [--ms N] [--repeats N] [--cold-mib N] [--threads N] [--device N] [--ncu]\n"
    "PRESET: small (GPT-2 and Llama), or one of gpt2-124m gpt2-350m gpt2-774m gpt2-1.5b qwen2.5-0.5b qwen2.5-1.5b "
    "llama3-8b.\n--tokens: of a micro-batch. --ms: least length of a timed batch of calls. --cold-mib: the memory that "
    "calls go round in.\n--ncu: runs itself under ncu for sectors per request.\n";

struct Options {
  std::string backend, dtype, shapes, filter, json;
  int64_t tokens = 0;
  bool once = false, ncu = false;
  backend::DeviceOptions device;
  MeasureOptions measure;

  bool fp8() const { return dtype == "fp8" || dtype == "fp8-delayed" || dtype == "fp8-block"; }
};

absl::StatusOr<Options> read_options(int argc, char** argv) {
  auto flags = Flags::parse(
      argc, argv,
      {"backend", "dtype", "shapes", "tokens", "filter", "json", "ms", "repeats", "cold-mib", "threads", "device"},
      {"ncu", "once"});
  if (!flags.ok()) return flags.status();
  Options options{.backend = flags->text("backend", "cpu"),
                  .dtype = flags->text("dtype", "bf16"),
                  .shapes = flags->text("shapes", flags->text("backend", "cpu") == "cpu" ? "small" : "gpt2-124m"),
                  .filter = flags->text("filter", ""),
                  .json = flags->text("json", ""),
                  .once = flags->has("once"),
                  .ncu = flags->has("ncu")};
  absl::Status status;
  const auto take = [&](const char* name, int64_t absent, int64_t least) {
    const auto value = flags->number(name, absent, least);
    status.Update(value.status());
    return value.ok() ? *value : absent;
  };
  options.tokens = take("tokens", 0, 1);
  options.device.index = static_cast<int>(take("device", 0, 0));
  options.device.threads = static_cast<int>(take("threads", std::max(1u, std::thread::hardware_concurrency()), 1));
  options.measure.batch_seconds = 1e-3 * static_cast<double>(take("ms", 10, 0));
  options.measure.repeats = static_cast<int>(take("repeats", 9, 1));
  options.measure.cold_bytes = static_cast<uint64_t>(take("cold-mib", 256, 0)) << 20;
  if (options.dtype != "f32" && options.dtype != "bf16" && options.dtype != "f16" && !options.fp8()) {
    status.Update(absl::InvalidArgumentError("--dtype: got '" + options.dtype +
                                             "', wanted f32, bf16, f16, fp8, fp8-delayed or fp8-block"));
  }
  if (!status.ok()) return status;
  return options;
}

struct Row {
  std::string name, kernel, shapes, model;
  double flops = 0, bytes = 0;
  Measured measured;
  double equal_copy = 0;  // Bytes/s of a copy that moves as many; 0 of products.
  double rate() const { return (flops > 0 ? flops : bytes) / measured.seconds; }
};

struct Ceilings {
  double copy = 0;     // Bytes/s, read and written.
  double product = 0;  // FLOP/s.
  double of(const Row& row) const { return row.flops > 0 ? product : copy; }
};

// Ops of programs that are measured: of each kind that calls the same kernel the same way (a gradient may be written or
// added to) the one that moves most bytes.
struct Candidate {
  std::string name;
  const engine::Program* program;
  const engine::Op* op;
};
class Candidates {
 public:
  // A kind is what kind_of says, or, where the names say nothing, the kernel.
  void add(const engine::Program& program, const std::string& prefix, bool by_kernel) {
    for (const engine::Op& op : program.ops()) {
      const std::string kernel = kernel_of(op);
      if (kernel == "collective") continue;
      const std::string name = prefix + (by_kernel ? kernel : kind_of(op));
      std::string modes;
      for (const engine::Access& access : op.accesses) modes += std::to_string(static_cast<int>(access.mode));
      const auto [at, is_new] = places_.try_emplace({name, kernel, modes}, all_.size());
      if (is_new) {
        all_.push_back({name, &program, &op});
      } else if (Candidate& known = all_[at->second]; op.cost.bytes > known.op->cost.bytes) {
        known = {name, &program, &op};
      }
    }
  }
  const std::vector<Candidate>& all() const { return all_; }

 private:
  std::map<std::array<std::string, 3>, size_t> places_;
  std::vector<Candidate> all_;
};

// Half a vocabulary, as a rank of two has it, for as many tokens as a chunk of the head may have.
void record_sliced_loss(engine::Program& program, int64_t tokens, const v1::ModelSpec& model, DType dtype) {
  const int64_t vocab = model.vocab(), half = (vocab + 1) / 2, rows = std::min<int64_t>(tokens, 8192);
  const int64_t columns = (half + 63) / 64 * 64;  // Padded as the head's are.
  const auto tensor = [&](const char* name, DType of, engine::Shape shape) {
    return program.persistent(name, of, shape, MemoryClass::kWorkspace);
  };
  const engine::Tensor targets = tensor("targets", DType::kI32, {rows}), count = tensor("count", DType::kF32, {1}),
                       loss = tensor("loss", DType::kF32, {1}), logits = tensor("logits", dtype, {rows, columns}),
                       parts = tensor("parts", DType::kF32, {2, 3, rows});
  const backend::VocabSlice slice{0, half, vocab};
  program.record("softmax_parts", &Kernels::softmax_parts, targets.in(), slice, logits.in(),
                 parts.slice(0, {3, rows}).out());
  program.record("cross_entropy_parts", &Kernels::cross_entropy_parts, targets.in(), count.in(), backend::In(), slice,
                 parts.in(), logits.inout(), loss.inout());
  program.record("cross_entropy_loss_parts", &Kernels::cross_entropy_loss_parts, targets.in(), count.in(), parts.in(),
                 loss.inout());
}

// What no model records by itself, or only where it recomputes.
std::unique_ptr<engine::Program> plain_program(int64_t tokens, const v1::ModelSpec& model, DType dtype) {
  auto program = std::make_unique<engine::Program>();
  const auto tensor = [&](const char* name, int64_t width) {
    return program->persistent(name, dtype, {tokens, width}, MemoryClass::kActivations);
  };
  const engine::Tensor a = tensor("a", model.hidden()), b = tensor("b", model.hidden()),
                       y = tensor("y", model.hidden());
  program->record("gelu", &Kernels::gelu, tensor("x", model.ffn()).in(), tensor("gelu", model.ffn()).out(),
                  backend::Out());
  program->record("copy", &Kernels::copy, a.in(), y.out());
  program->record("add", &Kernels::add, a.in(), b.in(), y.out());
  record_sliced_loss(*program, tokens, model, dtype);
  return program;
}

class Bench {
 public:
  Bench(const Options& options, backend::Device& device, backend::Stream& stream)
      : options_(options), device_(device), stream_(stream) {}

  absl::Status run() {
    if (!options_.once) {
      if (absl::Status status = measure_ceilings(); !status.ok()) return status;
    }
    std::vector<std::string> presets = {options_.shapes};
    if (options_.shapes == "small") presets = {"small-gpt2", "small-llama"};
    for (const std::string& preset : presets) {
      if (absl::Status status = run_model(preset); !status.ok()) return status;
    }
    return options_.once ? absl::OkStatus() : measure_ceilings();  // The better of before and after counts.
  }

  void print() const {
    fmt::print("device: {}; ceilings of this run: copy {:.3f} TB/s, {} product {:.1f} TFLOP/s\n\n",
               device_.info().model, ceilings_.copy / 1e12, options_.dtype, ceilings_.product / 1e12);
    fmt::print("{:<28} {:<21} {:>10} {:>10} {:>14} {:>10} {:>11}  {}\n", "op", "kernel", "GFLOP|MB", "us", "rate",
               "of ceiling", "equal copy", "shapes: read > written");
    for (const Row& row : rows_) {
      fmt::print("{:<28} {:<21} {:>10.4g} {:>10.4g} {:>6.4g} {:<7} {:>9.1f}%{} {:>11} {}\n", row.name, row.kernel,
                 row.flops > 0 ? row.flops / 1e9 : row.bytes / 1e6, row.measured.seconds * 1e6, row.rate() / 1e12,
                 row.flops > 0 ? "TFLOP/s" : "TB/s", 100 * row.rate() / ceilings_.of(row),
                 row.measured.host_bound ? "h" : " ",
                 row.equal_copy > 0 ? fmt::format("{:.1f}%", 100 * row.rate() / row.equal_copy) : "-", row.shapes);
    }
    fmt::print(
        "of ceiling: of the large copy's or product's rate. equal copy: of the rate of a copy that moves as many "
        "bytes, "
        "whose start costs as much.\nh: the host took as long to launch as the device to run.\n");
    print_launches();
  }

  absl::Status write(const std::string& path) const {
    Json json = {{"device", device_.info().model},
                 {"backend", options_.backend},
                 {"dtype", options_.dtype},
                 {"shapes", options_.shapes},
                 {"copy_bytes_per_second", ceilings_.copy},
                 {"product_flops_per_second", ceilings_.product},
                 {"rows", Json::array()}};
    std::set<std::string> missing(kernel_names().begin(), kernel_names().end());
    for (const Row& row : rows_) {
      missing.erase(row.kernel);
      json["rows"].push_back(row_json(row));
    }
    json["kernels"] = kernel_names();
    json["not_measured"] = missing;  // Of other architectures, or filtered out.
    return write_file(path, json.dump(1) + "\n");
  }

 private:
  // The rate of a copy that moves so many bytes, read and written. Kernels of one size share it.
  absl::StatusOr<double> equal_copy(double bytes) {
    const auto elements = std::max<int64_t>(1, static_cast<int64_t>(bytes / (2 * sizeof(float))));
    if (const auto known = equal_copies_.find(elements); known != equal_copies_.end()) return known->second;
    engine::Program program;
    const auto tensor = [&] { return program.persistent("x", DType::kF32, {elements}, MemoryClass::kActivations); };
    program.record("copy", &Kernels::copy, tensor().in(), tensor().out());
    const auto measured = measure(program, program.ops()[0], device_, stream_, options_.measure);
    if (!measured.ok()) return measured.status();
    return equal_copies_[elements] = program.ops()[0].cost.bytes / measured->seconds;
  }

  absl::Status measure_ceilings() {
    const bool gpu = options_.backend != "cpu";
    const int64_t elements = gpu ? int64_t{1} << 28 : int64_t{1} << 23, n = gpu ? 8192 : 1024;
    const DType dtype = options_.dtype == "f32" ? DType::kF32 : options_.dtype == "f16" ? DType::kF16 : DType::kBF16;
    engine::Program program;
    const auto tensor = [&](DType of, engine::Shape shape) {
      return program.persistent("x", of, shape, MemoryClass::kActivations);
    };
    program.record("copy", &Kernels::copy, tensor(DType::kF32, {elements}).in(), tensor(DType::kF32, {elements}).out());
    if (options_.fp8()) {
      const engine::Tensor a = tensor(DType::kF8E4M3, {n, n}), b = tensor(DType::kF8E4M3, {n, n});
      const engine::Tensor inverse = tensor(DType::kF32, {1});
      program.record("product", &Kernels::fp8_product, a.in(), inverse.in(), b.in(), inverse.in(), backend::In(), true,
                     tensor(dtype, {n, n}).out());
    } else {
      program.record("product", &Kernels::linear, tensor(dtype, {n, n}).in(), tensor(dtype, {n, n}).in(), backend::In(),
                     tensor(dtype, {n, n}).out());
    }
    const double cubed = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    for (const engine::Op& op : program.ops()) {
      const auto measured = measure(program, op, device_, stream_, options_.measure);
      if (!measured.ok()) return measured.status();
      const bool copies = op.name == "copy";
      double& best = copies ? ceilings_.copy : ceilings_.product;
      best = std::max(best, (copies ? op.cost.bytes : 2 * cubed) / measured->seconds);
    }
    return absl::OkStatus();
  }

  absl::Status run_model(const std::string& preset) {
    SpecRequest request{.preset = preset,
                        .accumulate = 2,  // The first micro-batch may be treated in its own way.
                        .precision = options_.dtype == "bf16"  ? "bf16"
                                     : options_.dtype == "f16" ? "fp16"
                                     : options_.fp8()          ? options_.dtype
                                                               : "fp32",
                        .gpu = options_.backend != "cpu"};
    auto spec = make_spec(request);
    if (spec.ok() && options_.tokens > 0) {
      const int64_t sequence = std::min<int64_t>(options_.tokens, spec->batch().sequence_length());
      request.sequence = sequence;
      request.micro = options_.tokens / sequence;
      spec = make_spec(request);
    }
    if (!spec.ok()) return spec.status();
    const plan::RunShape shape = plan::run_shape(*spec, {});
    const auto train = plan::record_train(shape);
    const auto eval = plan::record_eval(shape);
    const auto init = plan::record_init(shape);
    const auto refresh = plan::record_refresh(shape);
    const auto plain = plain_program(shape.micro_tokens(), spec->model(), shape.act);
    Candidates candidates;
    candidates.add(train->program, "", false);
    candidates.add(eval->program, "", false);  // Its forward is the training step's; what is new is the loss alone.
    candidates.add(*plain, "", true);
    candidates.add(refresh->program, "", true);
    candidates.add(init->program, "init.", true);
    for (const Candidate& candidate : candidates.all()) {
      if (absl::Status status = run_op(preset, candidate, *spec); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status run_op(const std::string& preset, const Candidate& candidate, const v1::JobSpec& spec) {
    Row row{.name = candidate.name,
            .kernel = kernel_of(*candidate.op),
            .shapes = shapes_of(*candidate.op),
            .model = preset,
            .flops = candidate.op->cost.flops,
            .bytes = traffic_of(*candidate.op)};
    const std::regex filter(options_.filter);
    if (!std::regex_search(row.name, filter) && !std::regex_search(row.kernel, filter)) return absl::OkStatus();
    MeasureOptions measure_options = options_.measure;
    measure_options.ids_below = static_cast<int32_t>(spec.model().vocab());
    absl::Status status;
    if (options_.once) {
      status = call_once(*candidate.program, *candidate.op, device_, stream_, measure_options);
    } else if (auto measured = measure(*candidate.program, *candidate.op, device_, stream_, measure_options);
               measured.ok()) {
      row.measured = *std::move(measured);
      const auto copy = row.flops > 0 ? absl::StatusOr<double>(0.0) : equal_copy(row.bytes);
      status = copy.status();
      if (copy.ok()) row.equal_copy = *copy;
      rows_.push_back(std::move(row));
    } else {
      status = measured.status();
    }
    if (status.ok()) return status;
    return absl::Status(status.code(), candidate.name + ", " + kernel_of(*candidate.op) + " " +
                                           shapes_of(*candidate.op) + ": " + std::string(status.message()));
  }

  // One line a kernel and way of launching it.
  void print_launches() const {
    std::set<std::string> seen;
    fmt::print("\n{:<28} {:>8} {:>7} {:>5} {:>8} {:>6} {:>6}  {:<14} {}\n", "launched by", "blocks", "threads", "regs",
               "shared", "local", "warps", "limited by", "kernel");
    for (const Row& row : rows_) {
      if (!row.measured.launches_problem.empty()) {
        fmt::print("{:<28} not known: {}\n", row.name, row.measured.launches_problem);
      }
      for (const backend::KernelLaunch& launch : row.measured.launches) {
        const std::string line =
            fmt::format("{:>8} {:>7} {:>5} {:>8} {:>6} {:>3}/{:<2}  {:<14} {}", launch.blocks, launch.threads,
                        launch.registers, launch.shared_bytes, launch.local_bytes, launch.resident_warps,
                        launch.max_warps, launch.limiter, launch.name.substr(0, 110));
        if (seen.insert(line).second) fmt::print("{:<28} {}\n", row.name, line);
      }
    }
  }

  Json row_json(const Row& row) const {
    Json launches = Json::array();
    for (const backend::KernelLaunch& launch : row.measured.launches) {
      launches.push_back({{"kernel", launch.name},
                          {"blocks", launch.blocks},
                          {"threads", launch.threads},
                          {"registers", launch.registers},
                          {"shared_bytes", launch.shared_bytes},
                          {"local_bytes", launch.local_bytes},
                          {"resident_warps", launch.resident_warps},
                          {"max_warps", launch.max_warps},
                          {"limiter", launch.limiter}});
    }
    return {{"op", row.name},
            {"kernel", row.kernel},
            {"model", row.model},
            {"shapes", row.shapes},
            {"flops", row.flops},
            {"bytes", row.bytes},
            {"seconds", row.measured.seconds},
            {"fastest", row.measured.fastest},
            {"slowest", row.measured.slowest},
            {"rate", row.rate()},
            {"share", row.rate() / ceilings_.of(row)},
            {"share_of_equal_copy", row.equal_copy > 0 ? Json(row.rate() / row.equal_copy) : Json()},
            {"host_bound", row.measured.host_bound},
            {"launches", launches},
            {"launches_problem", row.measured.launches_problem}};
  }

  const Options& options_;
  backend::Device& device_;
  backend::Stream& stream_;
  Ceilings ceilings_;
  std::map<int64_t, double> equal_copies_;  // By elements.
  std::vector<Row> rows_;
};

absl::Status run(const Options& options) {
  auto device = backend::open_device(options.backend, options.device);
  if (!device.ok()) return device.status();
  auto stream = (*device)->create_stream("bench", true);
  if (!stream.ok()) return stream.status();
  Bench bench(options, **device, **stream);
  if (absl::Status status = bench.run(); !status.ok() || options.once) return status;
  bench.print();
  return options.json.empty() ? absl::OkStatus() : bench.write(options.json);
}

}  // namespace
}  // namespace telar::bench

int main(int argc, char** argv) {
  const auto options = telar::bench::read_options(argc, argv);
  if (!options.ok()) {
    std::cerr << std::string(options.status().message()) << "\n" << telar::bench::kUsage;
    return 2;
  }
  absl::Status status = telar::bench::run(*options);
  if (status.ok() && options->ncu) status = telar::bench::print_sectors(argc, argv);
  if (status.ok()) return 0;
  std::cerr << "bench_kernels: " << std::string(status.message()) << "\n";
  return 1;
}
