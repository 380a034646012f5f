#include "worker/plan/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "worker/plan/presets.h"
#include "worker/plan/problems.h"
#include "worker/plan/resolve_data.h"
#include "worker/plan/resolve_elastic.h"
#include "worker/plan/resolve_enums.h"
#include "worker/plan/resolve_fp8.h"
#include "worker/plan/resolve_parallel.h"
#include "worker/plan/resolve_scheduling.h"
#include "worker/plan/resolve_tokenizer.h"

namespace telar::plan {
namespace {

class Resolver {
 public:
  explicit Resolver(v1::JobSpec& spec) : spec_(spec) {}

  std::vector<SpecProblem> run(v1::ResourceSpec::Kind default_kind) {
    check_enums(spec_, "", problems_);
    name();
    apply_preset();
    data_and_tokenizer();
    model_defaults();
    model_checks();
    resources_and_parallel(default_kind);
    if (!spec_.trace().has_account_every()) spec_.mutable_trace()->set_account_every(100);
    memory();
    batch();
    resolve_fp8(spec_, problems_);
    resolve_custom_schedule(spec_, problems_);
    resolve_elastic(spec_, problems_);
    optimizer();
    schedule();
    run_control();
    resolve_scheduling(spec_, problems_);
    return problems_.take();
  }

 private:
  template <typename... Args>
  void problem(const std::string& field, fmt::format_string<Args...> text, Args&&... args) {
    problems_.add(field, text, std::forward<Args>(args)...);
  }
  template <typename T>
  bool positive(const std::string& field, T value) {
    return problems_.positive(field, value);
  }
  void within(const std::string& field, double value, double low, double high) {
    problems_.within(field, value, low, high);
  }

  void name() {
    const std::string& name = spec_.name();
    bool good = !name.empty() && name.size() <= 63 && name.front() != '-' && name.back() != '-';
    for (char c : name) good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
    if (!good) {
      problem("name", "'{}' must be 1 to 63 of a-z, 0-9 and '-', with '-' neither first nor last", name.substr(0, 80));
    }
  }

  void apply_preset() {
    v1::ModelSpec& model = *spec_.mutable_model();
    if (model.preset().empty()) return;
    std::optional<v1::ModelSpec> preset = find_preset(model.preset());
    if (!preset) {
      problem("model.preset", "'{}' is not known; did you mean '{}'?", model.preset(), nearest_preset(model.preset()));
      return;
    }
    preset->MergeFrom(model);  // The user's own fields win.
    model = *preset;
  }

  void data_and_tokenizer() {
    v1::DataSpec& data = *spec_.mutable_data();
    if (data.format() == v1::DataSpec::FORMAT_UNSPECIFIED) data.set_format(v1::DataSpec::TEXT);
    resolve_tokenizer(spec_, problems_);
    const v1::TokenizerSpec& tokenizer = spec_.tokenizer();
    v1::ModelSpec& model = *spec_.mutable_model();
    if (tokenizer.kind() == v1::TokenizerSpec::BYTE && model.vocab() == 0) model.set_vocab(257);
    if (tokenizer.kind() == v1::TokenizerSpec::BYTE && model.vocab() < 257) {
      problem("model.vocab", "{} is smaller than the byte tokenizer's 257", model.vocab());
    }
    resolve_data(spec_, problems_);
  }
  void absolute(const std::string& field, const std::string& path) {
    if (path.empty() || path[0] != '/') problem(field, "'{}' must be an absolute path on the workers", path);
  }

  void model_defaults() {
    v1::ModelSpec& model = *spec_.mutable_model();
    const bool gpt2 = model.architecture() == v1::GPT2;
    if (model.kv_heads() == 0) model.set_kv_heads(model.heads());
    if (model.head_dim() == 0 && model.heads() > 0) model.set_head_dim(model.hidden() / model.heads());
    if (gpt2 && model.ffn() == 0) model.set_ffn(4 * model.hidden());
    if (!model.has_tied_head()) model.set_tied_head(gpt2);
    if (!model.has_qkv_bias()) model.set_qkv_bias(gpt2);
    if (model.norm_epsilon() == 0) model.set_norm_epsilon(1e-5);
    if (model.init_stddev() == 0) model.set_init_stddev(0.02);
    if (gpt2 && model.max_positions() == 0) model.set_max_positions(spec_.batch().sequence_length());
    if (!gpt2 && model.rope_theta() == 0) model.set_rope_theta(10000);
  }

  void model_checks() {
    const v1::ModelSpec& model = spec_.model();
    if (model.architecture() == v1::ARCHITECTURE_UNSPECIFIED) {
      problem("model.architecture", "not given; use gpt2 or llama, or a model.preset");
      return;
    }
    const bool gpt2 = model.architecture() == v1::GPT2;
    positive("model.layers", model.layers());
    if (model.vocab() == 0 && spec_.data().format() == v1::DataSpec::PREPARED) {
      problem("model.vocab", "not given; it is the vocabulary of the data's tokenizer, which telar data stats prints");
    } else {
      positive("model.vocab", model.vocab());
    }
    positive("model.ffn", model.ffn());
    if (!positive("model.hidden", model.hidden()) || !positive("model.heads", model.heads())) return;
    if (model.heads() * model.head_dim() != model.hidden() && (gpt2 || model.hidden() % model.heads() != 0)) {
      problem("model.heads", "{} does not divide model.hidden = {}", model.heads(), model.hidden());
    }
    if (model.kv_heads() == 0 || model.heads() % model.kv_heads() != 0) {
      problem("model.kv_heads", "{} does not divide model.heads = {}", model.kv_heads(), model.heads());
    } else if (gpt2 && model.kv_heads() != model.heads()) {
      problem("model.kv_heads", "{} must equal model.heads = {} for gpt2", model.kv_heads(), model.heads());
    }
    if (!gpt2 && model.head_dim() % 2 != 0) {
      problem("model.head_dim", "{} must be even for rotary positions", model.head_dim());
    }
    if (gpt2 && !model.qkv_bias()) problem("model.qkv_bias", "false is not possible for gpt2");
    if (gpt2 && model.has_rope_scaling()) problem("model.rope_scaling", "gpt2 has no rotary positions");
    if (gpt2 && model.max_positions() < spec_.batch().sequence_length()) {
      problem("model.max_positions", "{} is less than batch.sequence_length = {}", model.max_positions(),
              spec_.batch().sequence_length());
    }
    if (model.has_rope_scaling()) {
      const v1::RopeScaling& scaling = model.rope_scaling();
      positive("model.rope_scaling.factor", scaling.factor());
      positive("model.rope_scaling.original_max_positions", scaling.original_max_positions());
      if (!(scaling.low_freq_factor() > 0 && scaling.high_freq_factor() > scaling.low_freq_factor())) {
        problem("model.rope_scaling.high_freq_factor", "{} must be above low_freq_factor = {}, and that above 0",
                scaling.high_freq_factor(), scaling.low_freq_factor());
      }
    }
    within("model.norm_epsilon", model.norm_epsilon(), 1e-12, 1);
    within("model.init_stddev", model.init_stddev(), 1e-6, 1);
  }

  void resources_and_parallel(v1::ResourceSpec::Kind default_kind) {
    v1::ResourceSpec& resources = *spec_.mutable_resources();
    if (resources.devices() == 0) resources.set_devices(1);
    if (resources.kind() == v1::ResourceSpec::KIND_UNSPECIFIED) resources.set_kind(default_kind);
    resolve_parallel(spec_, problems_);
    v1::PrecisionSpec& precision = *spec_.mutable_precision();
    if (precision.compute() == v1::PRECISION_UNSPECIFIED) {
      precision.set_compute(resources.kind() == v1::ResourceSpec::GPU ? v1::BF16 : v1::FP32);
    }
    if (precision.compute() == v1::AUTO) {
      problem("precision.compute",
              "auto is decided when a job is submitted by itself; `telar plan` says what it becomes, which can be "
              "written here");
      return;
    }
    loss_scale(precision);
  }

  void loss_scale(v1::PrecisionSpec& precision) {
    if (precision.compute() != v1::FP16) {
      if (precision.has_loss_scale()) {
        problem("precision.loss_scale", "goes with precision.compute fp16 only, not with {}",
                precision.compute() == v1::BF16  ? "bf16"
                : precision.compute() == v1::FP8 ? "fp8"
                                                 : "fp32");
      }
      return;
    }
    v1::LossScaleSpec& scale = *precision.mutable_loss_scale();
    if (scale.initial() == 0) scale.set_initial(65536);
    if (scale.growth_factor() == 0) scale.set_growth_factor(2);
    if (scale.backoff_factor() == 0) scale.set_backoff_factor(0.5);
    if (scale.growth_interval() == 0) scale.set_growth_interval(2000);
    if (scale.min() == 0) scale.set_min(1);
    if (scale.max() == 0) scale.set_max(16777216);
    within("precision.loss_scale.growth_factor", scale.growth_factor(), 1, 1024);
    within("precision.loss_scale.backoff_factor", scale.backoff_factor(), 1.0 / 1024, 0.999);
    within("precision.loss_scale.growth_interval", static_cast<double>(scale.growth_interval()), 1, 1e7);
    within("precision.loss_scale.min", scale.min(), 1.0 / 1048576, 1073741824);
    within("precision.loss_scale.max", scale.max(), scale.min(), 1073741824);
    within("precision.loss_scale.initial", scale.initial(), scale.min(), scale.max());
  }

  void memory() {
    v1::MemorySpec& memory = *spec_.mutable_memory();
    if (memory.recompute() == v1::MemorySpec::RECOMPUTE_UNSPECIFIED) memory.set_recompute(v1::MemorySpec::NONE);
  }

  void batch() {
    v1::BatchSpec& batch = *spec_.mutable_batch();
    positive("batch.sequence_length", batch.sequence_length());
    const uint32_t tokens = batch.sequence_length(), tensor = spec_.parallel().tensor();
    if (tokens % tensor != 0) {  // Sequence parallel: each rank of the group has its part of every sequence.
      const uint32_t below = tokens / tensor * tensor;
      problem("batch.sequence_length", "{} is not divisible by parallel.tensor = {}: {} % {} = {}; use {}", tokens,
              tensor, tokens, tensor, tokens % tensor, below > 0 ? below : tensor);
    }
    const uint32_t data = spec_.parallel().data();
    if (!positive("batch.global", batch.global()) || data == 0) return;
    if (batch.global() % data != 0) {
      problem("batch.global", "{} is not divisible by parallel.data = {}", batch.global(), data);
      return;
    }
    const uint32_t share = batch.global() / data;
    if (batch.micro() == 0) batch.set_micro(share);
    if (share % batch.micro() != 0) {
      problem("batch.micro", "{} does not divide batch.global / parallel.data = {} / {} = {}", batch.micro(),
              batch.global(), data, share);
    }
  }

  void optimizer() {
    v1::OptimizerSpec& optimizer = *spec_.mutable_optimizer();
    if (optimizer.learning_rate() == 0) optimizer.set_learning_rate(3e-4);
    if (!optimizer.has_beta1()) optimizer.set_beta1(0.9);
    if (!optimizer.has_beta2()) optimizer.set_beta2(0.95);
    if (!optimizer.has_epsilon()) optimizer.set_epsilon(1e-8);
    if (!optimizer.has_weight_decay()) optimizer.set_weight_decay(0.1);
    if (!optimizer.has_clip_norm()) optimizer.set_clip_norm(1.0);
    within("optimizer.learning_rate", optimizer.learning_rate(), 0, 10);
    within("optimizer.beta1", optimizer.beta1(), 0, 0.999999);
    within("optimizer.beta2", optimizer.beta2(), 0, 0.999999);
    within("optimizer.epsilon", optimizer.epsilon(), 1e-20, 1);
    within("optimizer.weight_decay", optimizer.weight_decay(), 0, 10);
    within("optimizer.clip_norm", optimizer.clip_norm(), 0, 1e9);
  }

  void schedule() {
    v1::ScheduleSpec& schedule = *spec_.mutable_schedule();
    if (schedule.kind() == v1::ScheduleSpec::KIND_UNSPECIFIED) schedule.set_kind(v1::ScheduleSpec::COSINE);
    if (!positive("schedule.steps", schedule.steps())) return;
    const bool wsd = schedule.kind() == v1::ScheduleSpec::WSD;
    if (wsd && schedule.decay_steps() == 0) schedule.set_decay_steps(schedule.steps() / 5);
    if (!schedule.has_min_ratio()) schedule.set_min_ratio(wsd ? 0.0 : 0.1);
    within("schedule.min_ratio", schedule.min_ratio(), 0, 1);
    const uint64_t used = schedule.warmup_steps() + (wsd ? schedule.decay_steps() : 0);
    if (used > schedule.steps()) {
      problem("schedule.warmup_steps", "{}{} is more than schedule.steps = {}", schedule.warmup_steps(),
              wsd ? fmt::format(" + decay_steps {}", schedule.decay_steps()) : "", schedule.steps());
    }
  }

  void run_control() {
    if (spec_.checkpoint().keep() == 0) spec_.mutable_checkpoint()->set_keep(2);
    if (!spec_.checkpoint().has_at_end()) spec_.mutable_checkpoint()->set_at_end(true);
    if (spec_.checkpoint().keep_best() > 0 && spec_.eval().every_steps() == 0) {
      problem("checkpoint.keep_best", "{} needs evaluations to compare: set eval.every_steps",
              spec_.checkpoint().keep_best());
    }
    within("checkpoint.stop_grace_seconds", spec_.checkpoint().stop_grace_seconds(), 0, 3600);
    if (!spec_.checkpoint().has_async()) spec_.mutable_checkpoint()->set_async(true);
    const std::string& init = spec_.checkpoint().init_from();
    if (!init.empty()) absolute("checkpoint.init_from", init);
    if (spec_.eval().sequences() == 0) spec_.mutable_eval()->set_sequences(64);
    v1::RestartSpec& restart = *spec_.mutable_restart();
    if (!restart.has_max_restarts()) restart.set_max_restarts(3);
    if (!restart.has_max_node_restarts()) restart.set_max_node_restarts(100);
    if (restart.backoff_seconds() == 0) restart.set_backoff_seconds(1);
    if (!restart.has_max_without_progress()) restart.set_max_without_progress(5);
    if (restart.hang_seconds() == 0) restart.set_hang_seconds(60);
    v1::SampleSpec& sample = *spec_.mutable_sample();
    if (sample.tokens() > 0 && sample.temperature() == 0) sample.set_temperature(0.8);
    within("sample.temperature", sample.temperature(), 0, 10);
    if (sample.tokens() > 0 && sample.prompt().size() >= spec_.batch().sequence_length()) {
      problem("sample.prompt", "{} bytes do not fit in batch.sequence_length = {}", sample.prompt().size(),
              spec_.batch().sequence_length());
    }
  }

  v1::JobSpec& spec_;
  Problems problems_;
};

// Weights of a layer that take part in matrix products.
uint64_t layer_matrix_parameters(const v1::ModelSpec& model) {
  const uint64_t hidden = model.hidden(), head_dim = model.head_dim();
  const uint64_t q = uint64_t{model.heads()} * head_dim, kv = uint64_t{model.kv_heads()} * head_dim;
  const uint64_t mlp = uint64_t{model.ffn()} * hidden * (model.architecture() == v1::LLAMA ? 3 : 2);
  return hidden * (q + 2 * kv) + q * hidden + mlp;
}

// Of all, the output head among them; see flops_per_token.
uint64_t matrix_parameters(const v1::ModelSpec& model) {
  return model.layers() * layer_matrix_parameters(model) + uint64_t{model.vocab()} * model.hidden();
}

}  // namespace

std::vector<SpecProblem> resolve(v1::JobSpec& spec, v1::ResourceSpec::Kind default_kind) {
  return Resolver(spec).run(default_kind);
}

uint64_t parameter_count(const v1::ModelSpec& model) {
  const bool gpt2 = model.architecture() == v1::GPT2;
  const uint64_t hidden = model.hidden(), head_dim = model.head_dim();
  const uint64_t qkv = (uint64_t{model.heads()} + 2 * uint64_t{model.kv_heads()}) * head_dim;
  const uint64_t norms = 2 * hidden * (gpt2 ? 2 : 1);
  const uint64_t biases = (model.qkv_bias() ? qkv : 0) + (gpt2 ? hidden + model.ffn() + hidden : 0);
  uint64_t count = matrix_parameters(model) + model.layers() * (norms + biases) + hidden * (gpt2 ? 2 : 1);
  if (!model.tied_head()) count += uint64_t{model.vocab()} * hidden;
  if (gpt2) count += uint64_t{model.max_positions()} * hidden;
  return count;
}

double flops_per_token(const v1::ModelSpec& model, uint32_t sequence_length) {
  const double attention =
      6.0 * model.layers() * model.heads() * static_cast<double>(model.head_dim()) * sequence_length;
  return 6.0 * static_cast<double>(matrix_parameters(model)) + attention;
}

double fp8_flops_share(const v1::JobSpec& spec) {
  const std::vector<bool> layers = fp8_layers(spec);
  const auto in_fp8 = static_cast<double>(std::count(layers.begin(), layers.end(), true));
  return 6.0 * in_fp8 * static_cast<double>(layer_matrix_parameters(spec.model())) /
         flops_per_token(spec.model(), spec.batch().sequence_length());
}

}  // namespace telar::plan
