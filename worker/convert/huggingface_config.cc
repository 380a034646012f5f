#include "worker/convert/huggingface_config.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace telar::convert {
namespace {

using Json = nlohmann::json;

// Reads keys and collects what is wrong with them. A key that is null is absent.
class Config {
 public:
  explicit Config(Json json) : json_(std::move(json)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  const Json& at(const char* key) const { return json_.at(key); }
  std::string value(const char* key) const { return has(key) ? json_.at(key).dump() : "null"; }
  void problem(const std::string& text) { problems_.push_back(text); }
  void refuse(const char* key, const std::string& why) { problem(absl::StrCat(key, " ", value(key), ": ", why)); }
  const std::vector<std::string>& problems() const { return problems_; }

  // A size that must be there; with a default it need not be.
  uint32_t size(const char* key, uint32_t otherwise = 0) {
    if (!has(key)) {
      if (otherwise == 0) problem(absl::StrCat(key, " is missing"));
      return otherwise;
    }
    const Json& json = at(key);
    if (json.is_number_unsigned() && json.get<uint64_t>() > 0 && json.get<uint64_t>() <= INT32_MAX) {
      return json.get<uint32_t>();
    }
    refuse(key, "want a size above 0");
    return otherwise;
  }
  double number(const char* key, double otherwise) {
    if (!has(key)) return otherwise;
    if (at(key).is_number() && std::isfinite(at(key).get<double>())) return at(key).get<double>();
    refuse(key, "want a number");
    return otherwise;
  }
  bool flag(const char* key, bool otherwise) {
    if (!has(key)) return otherwise;
    if (at(key).is_boolean()) return at(key).get<bool>();
    refuse(key, "want true or false");
    return otherwise;
  }
  std::string text(const char* key, const std::string& otherwise) {
    if (!has(key)) return otherwise;
    if (at(key).is_string()) return at(key).get<std::string>();
    refuse(key, "want a text");
    return otherwise;
  }
  void want_flag(const char* key, bool wanted, bool otherwise, const std::string& why) {
    if (flag(key, otherwise) != wanted) refuse(key, why);
  }
  // Keys of other models and of files that are more than weights.
  void want_absent(const char* key, const std::string& why) {
    if (has(key)) refuse(key, why);
  }

 private:
  const Json json_;
  std::vector<std::string> problems_;
};

void read_gpt2(Config& config, v1::ModelSpec& model) {
  model.set_architecture(v1::GPT2);
  model.set_layers(config.size("n_layer"));
  model.set_hidden(config.size("n_embd"));
  model.set_heads(config.size("n_head"));
  model.set_max_positions(config.size("n_positions"));
  model.set_ffn(config.size("n_inner", 4 * model.hidden()));
  model.set_kv_heads(model.heads());
  model.set_tied_head(config.flag("tie_word_embeddings", true));
  model.set_qkv_bias(true);
  model.set_norm_epsilon(config.number("layer_norm_epsilon", 1e-5));
  if (model.heads() > 0) model.set_head_dim(model.hidden() / model.heads());
  if (model.heads() > 0 && model.hidden() % model.heads() != 0) {
    config.refuse("n_head", absl::StrCat("does not divide n_embd ", model.hidden()));
  }
  const std::string activation = config.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu_fast") {
    config.refuse("activation_function", "we have the tanh form of GELU only: gelu_new");
  }
  config.want_flag("scale_attn_weights", true, true, "we scale attention scores always");
  config.want_flag("scale_attn_by_inverse_layer_idx", false, false, "we do not scale scores by layer");
  config.want_flag("add_cross_attention", false, false, "we have no cross attention");
}

// `rope`: what holds the settings; in newer files the base, too.
void read_rope(Config& config, const char* key, v1::ModelSpec& model) {
  const Json& settings = config.at(key);
  if (!settings.is_object() ||
      std::any_of(settings.begin(), settings.end(), [](const Json& one) { return one.is_object(); })) {
    return config.refuse(key, "want one set of settings for all layers");
  }
  Config rope(settings);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (rope.has("rope_theta")) model.set_rope_theta(rope.number("rope_theta", model.rope_theta()));
  if (type == "llama3") {
    v1::RopeScaling& scaling = *model.mutable_rope_scaling();
    for (const char* needed : {"factor", "low_freq_factor", "high_freq_factor"}) {
      if (!rope.has(needed)) rope.problem(absl::StrCat(needed, " is missing"));
    }
    scaling.set_factor(rope.number("factor", 0));
    scaling.set_low_freq_factor(rope.number("low_freq_factor", 0));
    scaling.set_high_freq_factor(rope.number("high_freq_factor", 0));
    scaling.set_original_max_positions(rope.size("original_max_position_embeddings"));
  } else if (type != "default") {
    rope.problem(absl::StrCat("rope_type \"", type, "\": we have default and llama3"));
  }
  if (rope.number("partial_rotary_factor", 1) != 1) rope.refuse("partial_rotary_factor", "we turn whole heads");
  for (const std::string& one : rope.problems()) config.problem(absl::StrCat(key, ": ", one));
}

void read_attention_windows(Config& config) {
  if (config.flag("use_sliding_window", false)) config.refuse("use_sliding_window", "we have no sliding windows");
  if (!config.has("layer_types")) return;
  for (const Json& type : config.at("layer_types")) {
    if (type != "full_attention") return config.refuse("layer_types", "we have full_attention only");
  }
}

void read_llama(Config& config, bool qwen2, v1::ModelSpec& model) {
  model.set_architecture(v1::LLAMA);
  model.set_layers(config.size("num_hidden_layers"));
  model.set_hidden(config.size("hidden_size"));
  model.set_heads(config.size("num_attention_heads"));
  model.set_kv_heads(config.size("num_key_value_heads", model.heads()));
  model.set_head_dim(config.size("head_dim", model.heads() > 0 ? model.hidden() / model.heads() : 0));
  model.set_ffn(config.size("intermediate_size"));
  model.set_max_positions(config.size("max_position_embeddings", 2048));
  model.set_tied_head(config.flag("tie_word_embeddings", false));
  model.set_qkv_bias(qwen2);
  model.set_norm_epsilon(config.number("rms_norm_eps", 1e-6));
  model.set_rope_theta(config.number("rope_theta", 10000));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (config.has(key)) read_rope(config, key, model);
  }
  if (model.kv_heads() > 0 && model.heads() % model.kv_heads() != 0) {
    config.refuse("num_key_value_heads", absl::StrCat("does not divide num_attention_heads ", model.heads()));
  }
  if (model.head_dim() % 2 != 0) config.problem(absl::StrCat("head_dim ", model.head_dim(), ": must be even for RoPE"));
  const std::string activation = config.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") config.refuse("hidden_act", "we have silu only");
  if (!qwen2)
    config.want_flag("attention_bias", false, false, "we have no bias behind attention; Qwen2's are on q, k, v only");
  config.want_flag("mlp_bias", false, false, "we have no biases in a gated MLP");
  if (config.number("partial_rotary_factor", 1) != 1) config.refuse("partial_rotary_factor", "we turn whole heads");
  read_attention_windows(config);
}

std::string unknown_type(const std::string& type) {
  std::string why = absl::StrCat("model_type \"", type, "\": we read gpt2, llama and qwen2");
  if (type.starts_with("qwen3")) why += "; Qwen3 normalizes queries and keys, which we do not";
  if (type.find("moe") != std::string::npos || type == "mixtral") why += "; we have no mixture of experts";
  return why;
}

v1::ModelSpec read(Config& config) {
  v1::ModelSpec model;
  const std::string type = config.text("model_type", "");
  if (type == "gpt2") {
    read_gpt2(config, model);
  } else if (type == "llama" || type == "qwen2") {
    read_llama(config, type == "qwen2", model);
  } else {
    config.problem(unknown_type(type));
    return model;
  }
  model.set_vocab(config.size("vocab_size"));
  config.want_absent("quantization_config", "we read weights in f32, bf16 and f16 only");
  config.want_absent("num_experts", "we have no mixture of experts");
  config.want_absent("num_local_experts", "we have no mixture of experts");
  return model;
}

// With the keys that transformers' own class has, all of them that numbers depend on.
Json gpt2_config(const v1::ModelSpec& model) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"activation_function", "gelu_new"},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"layer_norm_epsilon", model.norm_epsilon()},
          {"n_ctx", model.max_positions()},
          {"n_embd", model.hidden()},
          {"n_head", model.heads()},
          {"n_inner", model.ffn() == 4 * model.hidden() ? Json() : Json(model.ffn())},
          {"n_layer", model.layers()},
          {"n_positions", model.max_positions()},
          {"scale_attn_weights", true}};
}

Json llama_config(const v1::ModelSpec& model) {
  Json json = {{"model_type", model.qkv_bias() ? "qwen2" : "llama"},
               {"architectures", {model.qkv_bias() ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
               {"attention_dropout", 0.0},
               {"head_dim", model.head_dim()},
               {"hidden_act", "silu"},
               {"hidden_size", model.hidden()},
               {"intermediate_size", model.ffn()},
               {"max_position_embeddings", model.max_positions()},
               {"num_attention_heads", model.heads()},
               {"num_hidden_layers", model.layers()},
               {"num_key_value_heads", model.kv_heads()},
               {"rms_norm_eps", model.norm_epsilon()},
               {"rope_scaling", nullptr},
               {"rope_theta", model.rope_theta()}};
  if (model.qkv_bias()) {
    json["use_sliding_window"] = false;
  } else {
    json["attention_bias"] = false;
    json["mlp_bias"] = false;
  }
  if (model.has_rope_scaling()) {
    const v1::RopeScaling& scaling = model.rope_scaling();
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling.factor()},
                            {"low_freq_factor", scaling.low_freq_factor()},
                            {"high_freq_factor", scaling.high_freq_factor()},
                            {"original_max_position_embeddings", scaling.original_max_positions()}};
  }
  return json;
}

const char* torch_name(backend::DType dtype) {
  if (dtype == backend::DType::kBF16) return "bfloat16";
  return dtype == backend::DType::kF16 ? "float16" : "float32";
}

// Null where there is none: left out, transformers would take its own default.
Json begin_of(const TokenIds& ids) { return ids.begin ? Json(*ids.begin) : Json(); }
Json end_of(const TokenIds& ids) {
  if (ids.end.empty()) return Json();
  return ids.end.size() == 1 ? Json(ids.end[0]) : Json(ids.end);
}

}  // namespace

absl::StatusOr<v1::ModelSpec> parse_config(std::string_view text, const std::string& path) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(path, ": no JSON object"));
  Config config(std::move(json));
  v1::ModelSpec model = read(config);
  if (config.problems().empty()) return model;
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", absl::StrJoin(config.problems(), "; ")));
}

std::string config_text(const v1::ModelSpec& model, backend::DType dtype, const TokenIds& ids) {
  Json json = model.architecture() == v1::GPT2 ? gpt2_config(model) : llama_config(model);
  json["vocab_size"] = model.vocab();
  json["tie_word_embeddings"] = model.tied_head();
  json["initializer_range"] = model.init_stddev() > 0 ? model.init_stddev() : 0.02;
  json["torch_dtype"] = torch_name(dtype);
  json["use_cache"] = true;
  json["bos_token_id"] = begin_of(ids);
  json["eos_token_id"] = end_of(ids);
  return json.dump(2) + "\n";
}

std::string generation_config_text(const TokenIds& ids) {
  Json json = {{"_from_model_config", true}};
  if (ids.begin) json["bos_token_id"] = begin_of(ids);
  if (!ids.end.empty()) json["eos_token_id"] = end_of(ids);
  return json.dump(2) + "\n";
}

}  // namespace telar::convert
