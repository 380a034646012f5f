#include "bench/spec.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "worker/plan/resolve.h"

namespace telar::bench {
namespace {

struct Preset {
  const char* name;
  const char* model;  // Of plan/presets.h; empty: small, see small_model().
  uint32_t sequence, micro, accumulate;
  uint32_t layers;  // 0: all.
};
// As bench/gpu/models.txt: the tokens a step of the peers.
constexpr Preset kPresets[] = {
    {"gpt2-124m", "gpt2-124m", 1024, 256, 2, 0},
    {"gpt2-350m", "gpt2-350m", 1024, 128, 4, 0},
    {"gpt2-774m", "gpt2-774m", 1024, 64, 8, 0},
    {"gpt2-1.5b", "gpt2-1.5b", 1024, 32, 8, 0},
    {"qwen2.5-0.5b", "qwen2.5-0.5b", 1024, 64, 4, 0},
    {"qwen2.5-1.5b", "qwen2.5-1.5b", 1024, 32, 8, 0},
    {"llama3-8b", "llama3-8b", 4096, 2, 4, 8},
    {"small-gpt2", "", 32, 4, 2, 0},
    {"small-llama", "", 32, 4, 2, 0},
};

v1::ModelSpec small_model(bool gpt2) {
  v1::ModelSpec model;
  model.set_architecture(gpt2 ? v1::GPT2 : v1::LLAMA);
  model.set_layers(2);
  model.set_hidden(64);
  model.set_heads(4);
  model.set_kv_heads(gpt2 ? 4 : 2);
  model.set_ffn(gpt2 ? 256 : 160);
  model.set_vocab(500);
  return model;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

absl::StatusOr<v1::JobSpec> make_spec(const SpecRequest& request) {
  const Preset* preset = nullptr;
  for (const Preset& one : kPresets) {
    if (request.preset == one.name) preset = &one;
  }
  if (preset == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("preset '", request.preset, "' is none of ", absl::StrJoin(preset_names(), " ")));
  }
  v1::JobSpec spec;
  spec.set_name("bench");
  if (*preset->model == '\0') {
    *spec.mutable_model() = small_model(request.preset == "small-gpt2");
  } else {
    spec.mutable_model()->set_preset(preset->model);
  }
  if (preset->layers > 0) spec.mutable_model()->set_layers(preset->layers);
  spec.mutable_data()->add_train("/synthetic");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_micro(preset->micro);
  spec.mutable_batch()->set_global(preset->micro * preset->accumulate);
  spec.mutable_batch()->set_sequence_length(preset->sequence);
  spec.mutable_schedule()->set_steps(1000);
  if (absl::Status status = adapt_spec(request, spec); !status.ok()) return status;
  return spec;
}

absl::Status adapt_spec(const SpecRequest& request, v1::JobSpec& spec) {
  const auto choose = [](int64_t asked, uint32_t own) { return asked > 0 ? static_cast<uint32_t>(asked) : own; };
  if (!request.precision.empty()) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(absl::AsciiStrToUpper(request.precision), absl::MaxSplits('-', 1));
    v1::Precision precision = v1::PRECISION_UNSPECIFIED;
    v1::PrecisionSpec::Recipe recipe = v1::PrecisionSpec::RECIPE_UNSPECIFIED;
    const bool known =
        v1::Precision_Parse(parts.first, &precision) &&
        (parts.second.empty() || (precision == v1::FP8 && v1::PrecisionSpec::Recipe_Parse(parts.second, &recipe)));
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat("precision '", request.precision, "' is none of bf16, fp16, fp32, fp8, fp8-delayed, fp8-block"));
    }
    spec.mutable_precision()->set_compute(precision);
    if (recipe != v1::PrecisionSpec::RECIPE_UNSPECIFIED) spec.mutable_precision()->set_recipe(recipe);
  }
  v1::BatchSpec& batch = *spec.mutable_batch();
  const uint32_t micro = batch.micro() > 0 ? batch.micro() : batch.global();
  const uint32_t accumulate = micro > 0 ? batch.global() / micro : 1;
  batch.set_micro(choose(request.micro, micro));
  batch.set_global(batch.micro() * choose(request.accumulate, accumulate));
  batch.set_sequence_length(choose(request.sequence, batch.sequence_length()));
  if (request.layers > 0) spec.mutable_model()->set_layers(static_cast<uint32_t>(request.layers));
  if (request.documents) {
    spec.mutable_data()->set_reset_at_documents(true);
    if (spec.data().format() == v1::DataSpec::LLMC_BIN) spec.mutable_tokenizer()->set_end_of_document("0");
  }
  spec.mutable_resources()->set_devices(1);
  spec.mutable_parallel()->set_data(1);
  const auto kind = request.gpu ? v1::ResourceSpec::GPU : v1::ResourceSpec::CPU;
  spec.mutable_resources()->set_kind(kind);
  std::string text;
  for (const plan::SpecProblem& problem : plan::resolve(spec, kind)) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", problem.field, ": ", problem.description);
  }
  return text.empty() ? absl::OkStatus() : absl::InvalidArgumentError(text);
}

}  // namespace telar::bench
