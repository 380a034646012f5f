#include "worker/plan/presets.h"

#include "worker/plan/nearest.h"

namespace telar::plan {
namespace {

// The sources are the configurations that the models' authors published.
struct Gpt2Preset {
  const char* name;
  uint32_t layers, hidden, heads;
};
constexpr Gpt2Preset kGpt2[] = {
    {"gpt2-124m", 12, 768, 12},
    {"gpt2-350m", 24, 1024, 16},
    {"gpt2-774m", 36, 1280, 20},
    {"gpt2-1.5b", 48, 1600, 25},
};

struct LlamaPreset {
  const char* name;
  uint32_t layers, hidden, heads, kv_heads, ffn, vocab;
  double theta, epsilon;
  bool tied, qkv_bias;
  double rope_factor;  // 0: no scaling. Otherwise low 1, high 4, original 8192 as in Llama 3.1.
};
constexpr LlamaPreset kLlama[] = {
    {"llama2-7b", 32, 4096, 32, 32, 11008, 32000, 1e4, 1e-5, false, false, 0},
    {"llama2-70b", 80, 8192, 64, 8, 28672, 32000, 1e4, 1e-5, false, false, 0},
    {"llama3-8b", 32, 4096, 32, 8, 14336, 128256, 5e5, 1e-5, false, false, 0},
    {"llama3-70b", 80, 8192, 64, 8, 28672, 128256, 5e5, 1e-5, false, false, 0},
    {"llama3.1-8b", 32, 4096, 32, 8, 14336, 128256, 5e5, 1e-5, false, false, 8},
    {"llama3.1-70b", 80, 8192, 64, 8, 28672, 128256, 5e5, 1e-5, false, false, 8},
    {"llama3.1-405b", 126, 16384, 128, 8, 53248, 128256, 5e5, 1e-5, false, false, 8},
    {"llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, 5e5, 1e-5, true, false, 32},
    {"llama3.2-3b", 28, 3072, 24, 8, 8192, 128256, 5e5, 1e-5, true, false, 32},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, 1e6, 1e-6, true, true, 0},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, 1e6, 1e-6, true, true, 0},
    {"qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 1e6, 1e-6, false, true, 0},
};

v1::ModelSpec expand(const Gpt2Preset& preset) {
  v1::ModelSpec model;
  model.set_architecture(v1::GPT2);
  model.set_layers(preset.layers);
  model.set_hidden(preset.hidden);
  model.set_heads(preset.heads);
  model.set_vocab(50257);
  model.set_max_positions(1024);
  return model;
}

v1::ModelSpec expand(const LlamaPreset& preset) {
  v1::ModelSpec model;
  model.set_architecture(v1::LLAMA);
  model.set_layers(preset.layers);
  model.set_hidden(preset.hidden);
  model.set_heads(preset.heads);
  model.set_kv_heads(preset.kv_heads);
  model.set_ffn(preset.ffn);
  model.set_vocab(preset.vocab);
  model.set_rope_theta(preset.theta);
  model.set_norm_epsilon(preset.epsilon);
  model.set_tied_head(preset.tied);
  model.set_qkv_bias(preset.qkv_bias);
  if (preset.rope_factor > 0) {
    auto* scaling = model.mutable_rope_scaling();
    scaling->set_factor(preset.rope_factor);
    scaling->set_low_freq_factor(1);
    scaling->set_high_freq_factor(4);
    scaling->set_original_max_positions(8192);
  }
  return model;
}

}  // namespace

std::optional<v1::ModelSpec> find_preset(const std::string& name) {
  for (const Gpt2Preset& preset : kGpt2) {
    if (name == preset.name) return expand(preset);
  }
  for (const LlamaPreset& preset : kLlama) {
    if (name == preset.name) return expand(preset);
  }
  return std::nullopt;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Gpt2Preset& preset : kGpt2) names.emplace_back(preset.name);
  for (const LlamaPreset& preset : kLlama) names.emplace_back(preset.name);
  return names;
}

std::string nearest_preset(const std::string& name) { return nearest_name(name, preset_names()); }

}  // namespace telar::plan
