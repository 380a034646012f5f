#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/worker/convert/directories.h"
#include "worker/convert/huggingface_config.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::convert {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

v1::ModelSpec parsed(const Json& json) {
  const auto model = parse_config(json.dump(), "config.json");
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : v1::ModelSpec();
}
std::string refusal(const Json& json) {
  const auto model = parse_config(json.dump(), "config.json");
  return model.ok() ? "it was read" : std::string(model.status().message());
}

// As Llama 3.2's own file, with some sizes made small.
Json llama() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})");
}

TEST(Config, Llama) {
  const v1::ModelSpec model = parsed(llama());
  EXPECT_EQ(model.architecture(), v1::LLAMA);
  EXPECT_EQ(model.layers(), 16u);
  EXPECT_EQ(model.hidden(), 2048u);
  EXPECT_EQ(model.heads(), 32u);
  EXPECT_EQ(model.kv_heads(), 8u);
  EXPECT_EQ(model.head_dim(), 64u);
  EXPECT_EQ(model.ffn(), 8192u);
  EXPECT_EQ(model.vocab(), 128256u);
  EXPECT_EQ(model.max_positions(), 131072u);
  EXPECT_TRUE(model.tied_head());
  EXPECT_FALSE(model.qkv_bias());
  EXPECT_EQ(model.norm_epsilon(), 1e-5);
  EXPECT_EQ(model.rope_theta(), 500000);
  EXPECT_EQ(model.rope_scaling().factor(), 32);
  EXPECT_EQ(model.rope_scaling().low_freq_factor(), 1);
  EXPECT_EQ(model.rope_scaling().high_freq_factor(), 4);
  EXPECT_EQ(model.rope_scaling().original_max_positions(), 8192u);
}

TEST(Config, NewerFilesHaveRopeParameters) {
  Json json = llama(), rope = json["rope_scaling"];
  rope["rope_theta"] = 500000;
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json["rope_parameters"] = rope;
  EXPECT_EQ(parsed(json).SerializeAsString(), parsed(llama()).SerializeAsString());
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(parsed(json).rope_theta(), 1e6);
  EXPECT_FALSE(parsed(json).has_rope_scaling());
  json["rope_parameters"] = {{"full_attention", rope}};
  EXPECT_THAT(refusal(json), HasSubstr("rope_parameters"));
}

TEST(Config, DefaultsAreThoseOfTransformers) {
  Json json = llama();
  for (const char* key : {"head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling",
                          "tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias"}) {
    json.erase(key);
  }
  const v1::ModelSpec model = parsed(json);
  EXPECT_EQ(model.head_dim(), 64u);
  EXPECT_EQ(model.kv_heads(), 32u);
  EXPECT_EQ(model.norm_epsilon(), 1e-6);
  EXPECT_EQ(model.rope_theta(), 10000);
  EXPECT_FALSE(model.tied_head());
  json["model_type"] = "qwen2";
  EXPECT_TRUE(parsed(json).qkv_bias());
}

TEST(Config, Gpt2) {
  Json json = Json::parse(testing::kGpt2Config);
  const v1::ModelSpec model = parsed(json);
  EXPECT_EQ(model.architecture(), v1::GPT2);
  EXPECT_EQ(model.hidden(), 6u);
  EXPECT_EQ(model.head_dim(), 3u);
  EXPECT_EQ(model.ffn(), 24u);
  EXPECT_EQ(model.max_positions(), 5u);
  EXPECT_TRUE(model.tied_head());
  EXPECT_TRUE(model.qkv_bias());
  json["n_inner"] = 30;
  json["tie_word_embeddings"] = false;
  json["activation_function"] = "gelu_pytorch_tanh";
  EXPECT_EQ(parsed(json).ffn(), 30u);
  EXPECT_FALSE(parsed(json).tied_head());
}

// Each of these would make other numbers without a word.
TEST(Config, WhatWeCannotComputeIsRefusedByName) {
  const std::vector<std::tuple<const char*, Json, const char*>> cases = {
      {"hidden_act", "gelu", "hidden_act \"gelu\": we have silu only"},
      {"attention_bias", true, "attention_bias true: we have no bias behind attention"},
      {"mlp_bias", true, "mlp_bias true"},
      {"rope_scaling",
       {{"type", "linear"}, {"factor", 2.0}},
       "rope_scaling: rope_type \"linear\": we have default and llama3"},
      {"rope_scaling", {{"rope_type", "yarn"}}, "rope_type \"yarn\""},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}, "rope_scaling: low_freq_factor is missing"},
      {"rope_scaling", "none", "rope_scaling \"none\": want one set"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor 0.5"},
      {"use_sliding_window", true, "use_sliding_window true"},
      {"layer_types", {"full_attention", "sliding_attention"}, "layer_types"},
      {"quantization_config", {{"quant_method", "fp8"}}, "quantization_config {\"quant_method\":\"fp8\"}"},
      {"num_local_experts", 8, "num_local_experts 8: we have no mixture of experts"},
      {"num_key_value_heads", 7, "num_key_value_heads 7: does not divide num_attention_heads 32"},
      {"head_dim", 63, "head_dim 63: must be even"},
      {"model_type", "qwen3", "model_type \"qwen3\": we read gpt2, llama and qwen2; Qwen3 normalizes queries and keys"},
      {"model_type", "mixtral", "no mixture of experts"},
      {"model_type", nullptr, "model_type \"\""},
      {"hidden_size", nullptr, "hidden_size is missing"},
      {"hidden_size", -1, "hidden_size -1: want a size above 0"},
      {"vocab_size", "many", "vocab_size \"many\": want a size above 0"},
      {"tie_word_embeddings", 1, "tie_word_embeddings 1: want true or false"},
      {"rms_norm_eps", "small", "rms_norm_eps \"small\": want a number"},
  };
  for (const auto& [key, value, why] : cases) {
    Json json = llama();
    json[key] = value;
    EXPECT_THAT(refusal(json), HasSubstr(why)) << key;
  }
  const std::vector<std::tuple<const char*, Json, const char*>> gpt2 = {
      {"activation_function", "relu", "activation_function \"relu\": we have the tanh form of GELU only"},
      {"activation_function", "gelu", "activation_function \"gelu\""},
      {"scale_attn_weights", false, "scale_attn_weights false"},
      {"scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx true"},
      {"add_cross_attention", true, "add_cross_attention true"},
      {"n_head", 4, "n_head 4: does not divide n_embd 6"},
      {"n_positions", 0, "n_positions 0: want a size above 0"},
  };
  for (const auto& [key, value, why] : gpt2) {
    Json json = Json::parse(testing::kGpt2Config);
    json[key] = value;
    EXPECT_THAT(refusal(json), HasSubstr(why)) << key;
  }
}

TEST(Config, AllThatIsWrongAtOnce) {
  Json json = llama();
  json["hidden_act"] = "gelu";
  json["mlp_bias"] = true;
  json["quantization_config"] = {{"bits", 4}};
  EXPECT_THAT(refusal(json), AllOf(HasSubstr("config.json: "), HasSubstr("hidden_act"), HasSubstr("mlp_bias"),
                                   HasSubstr("quantization_config")));
  for (const char* text : {"", "[]", "{", "null", "\"gpt2\""}) {
    EXPECT_TRUE(absl::IsDataLoss(parse_config(text, "config.json").status())) << text;
  }
}

TEST(Config, WhatWeWriteWeRead) {
  Json plain = llama(), qwen2 = llama(), gpt2 = Json::parse(testing::kGpt2Config);
  plain.erase("rope_scaling");
  plain["tie_word_embeddings"] = false;
  plain["head_dim"] = 80;
  qwen2["model_type"] = "qwen2";
  gpt2["n_inner"] = 30;
  for (const Json& json : {llama(), plain, qwen2, gpt2, Json::parse(testing::kGpt2Config)}) {
    const v1::ModelSpec model = parsed(json);
    const std::string text = config_text(model, backend::DType::kBF16, {.begin = 3, .end = {7}});
    const auto again = parse_config(text, "config.json");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->SerializeAsString(), model.SerializeAsString()) << text;
    EXPECT_EQ(Json::parse(text)["torch_dtype"], "bfloat16");
    EXPECT_EQ(Json::parse(text)["bos_token_id"], 3);
    EXPECT_EQ(Json::parse(text)["eos_token_id"], 7);
  }
}

TEST(Config, TokenIds) {
  const TokenIds some{.begin = 128000, .end = {128001, 128008}};
  EXPECT_EQ(token_ids_in_config(llama().dump(), 128256), some);
  EXPECT_EQ(token_ids_in_config(llama().dump(), 128002), (TokenIds{.begin = 128000, .end = {128001}}));
  EXPECT_EQ(token_ids_in_config(testing::kGpt2Config, 50257), std::nullopt);
  EXPECT_EQ(token_ids_in_config(R"({"bos_token_id": null, "eos_token_id": 2})", 3), (TokenIds{.end = {2}}));
  const v1::ModelSpec model = parsed(llama());
  const Json written = Json::parse(config_text(model, backend::DType::kF32, some));
  EXPECT_EQ(written["eos_token_id"], Json::parse("[128001, 128008]"));
  EXPECT_EQ(Json::parse(generation_config_text(some))["bos_token_id"], 128000);
  const Json nothing = Json::parse(config_text(model, backend::DType::kF32, {}));
  EXPECT_TRUE(nothing["bos_token_id"].is_null());
  EXPECT_TRUE(nothing["eos_token_id"].is_null());
  EXPECT_FALSE(Json::parse(generation_config_text({})).contains("eos_token_id"));
}

TEST(Config, TokenIdsOfATokenizer) {
  const auto of = [](const std::string& file, v1::TokenizerSpec::Kind kind) {
    v1::TokenizerSpec spec;
    spec.set_kind(kind);
    if (!file.empty()) spec.set_path(std::string(std::getenv("TELAR_SOURCE_DIR")) + "/tests/golden/tokenizers/" + file);
    const auto ids = token_ids_of(spec);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.value_or(TokenIds());
  };
  EXPECT_EQ(of("", v1::TokenizerSpec::BYTE), (TokenIds{.end = {256}}));
  const auto text_of = [](const std::string& file, int64_t id) {
    v1::TokenizerSpec spec;
    spec.set_path(std::string(std::getenv("TELAR_SOURCE_DIR")) + "/tests/golden/tokenizers/" + file);
    return tokenizer::open(spec).value()->name_of(static_cast<int32_t>(id));
  };
  const TokenIds llama3 = of("llama3.json", v1::TokenizerSpec::HUGGING_FACE);
  ASSERT_TRUE(llama3.begin);
  EXPECT_EQ(text_of("llama3.json", *llama3.begin), "<|begin_of_text|>") << "of its template";
  const TokenIds unigram = of("unigram.model", v1::TokenizerSpec::SENTENCEPIECE);
  ASSERT_TRUE(unigram.begin);
  ASSERT_EQ(unigram.end.size(), 1u);
  EXPECT_EQ(text_of("unigram.model", *unigram.begin), "<s>");
  EXPECT_EQ(text_of("unigram.model", unigram.end[0]), "</s>");
}

}  // namespace
}  // namespace telar::convert
