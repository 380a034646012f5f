#include "worker/convert/tensor_map.h"

#include "absl/strings/str_cat.h"
#include "worker/model/parameters.h"

namespace telar::convert {
namespace {

StoredTensor stored(std::string name, bool transposed, std::vector<Part> parts) {
  StoredTensor tensor{std::move(name), {}, transposed, std::move(parts)};
  int64_t rows = 0;
  for (Part& part : tensor.parts) {
    part.first = rows;
    rows += part.shape[0];
  }
  const std::vector<int64_t>& shape = tensor.parts[0].shape;
  if (shape.size() == 1) {
    tensor.shape = {rows};
  } else if (transposed) {
    tensor.shape = {shape[1], rows};
  } else {
    tensor.shape = {rows, shape[1]};
  }
  return tensor;
}

struct Sizes {
  explicit Sizes(const v1::ModelSpec& model)
      : hidden(model.hidden()),
        q(int64_t{model.heads()} * model.head_dim()),
        kv(int64_t{model.kv_heads()} * model.head_dim()),
        ffn(model.ffn()) {}
  int64_t hidden, q, kv, ffn;
};

void add_gpt2_layer(const Sizes& sizes, int layer, std::vector<StoredTensor>& all) {
  const std::string theirs = absl::StrCat("transformer.h.", layer, "."), ours = absl::StrCat("layers.", layer, ".");
  const int64_t hidden = sizes.hidden;
  const auto norm = [&](const char* their_name, const char* our_name) {
    for (const char* end : {".weight", ".bias"}) {
      all.push_back(
          stored(absl::StrCat(theirs, their_name, end), false, {{absl::StrCat(ours, our_name, end), {hidden}}}));
    }
  };
  const auto linear = [&](const char* their_name, const std::vector<const char*>& our_names, int64_t out, int64_t in) {
    std::vector<Part> weights, biases;
    for (const char* name : our_names) {
      weights.push_back({absl::StrCat(ours, name, ".weight"), {out, in}});
      biases.push_back({absl::StrCat(ours, name, ".bias"), {out}});
    }
    all.push_back(stored(absl::StrCat(theirs, their_name, ".weight"), true, std::move(weights)));
    all.push_back(stored(absl::StrCat(theirs, their_name, ".bias"), false, std::move(biases)));
  };
  norm("ln_1", "attn_norm");
  linear("attn.c_attn", {"q", "k", "v"}, hidden, hidden);
  linear("attn.c_proj", {"o"}, hidden, hidden);
  norm("ln_2", "mlp_norm");
  linear("mlp.c_fc", {"up"}, sizes.ffn, hidden);
  linear("mlp.c_proj", {"down"}, hidden, sizes.ffn);
}

void add_llama_layer(const Sizes& sizes, bool qkv_bias, int layer, std::vector<StoredTensor>& all) {
  const std::string theirs = absl::StrCat("model.layers.", layer, "."), ours = absl::StrCat("layers.", layer, ".");
  const auto add = [&](const char* their_name, const char* our_name, std::vector<int64_t> shape) {
    all.push_back(stored(absl::StrCat(theirs, their_name), false, {{absl::StrCat(ours, our_name), std::move(shape)}}));
  };
  const auto projection = [&](const std::string& name, int64_t rows) {
    add(absl::StrCat("self_attn.", name, "_proj.weight").c_str(), absl::StrCat(name, ".weight").c_str(),
        {rows, sizes.hidden});
    if (!qkv_bias) return;
    add(absl::StrCat("self_attn.", name, "_proj.bias").c_str(), absl::StrCat(name, ".bias").c_str(), {rows});
  };
  add("input_layernorm.weight", "attn_norm.weight", {sizes.hidden});
  projection("q", sizes.q);
  projection("k", sizes.kv);
  projection("v", sizes.kv);
  add("self_attn.o_proj.weight", "o.weight", {sizes.hidden, sizes.q});
  add("post_attention_layernorm.weight", "mlp_norm.weight", {sizes.hidden});
  add("mlp.gate_proj.weight", "gate.weight", {sizes.ffn, sizes.hidden});
  add("mlp.up_proj.weight", "up.weight", {sizes.ffn, sizes.hidden});
  add("mlp.down_proj.weight", "down.weight", {sizes.hidden, sizes.ffn});
}

// Of all layers one behind the other: in each layer the parts of `names`.
StoredTensor stacked(const char* theirs, int layers, const std::vector<const char*>& names,
                     const std::vector<int64_t>& shape) {
  std::vector<Part> parts;
  for (int layer = 0; layer < layers; ++layer) {
    for (const char* name : names) parts.push_back({absl::StrCat("layers.", layer, ".", name), shape});
  }
  return stored(theirs, false, std::move(parts));
}

}  // namespace

std::vector<StoredTensor> logical_tensors(const v1::ModelSpec& model) {
  std::vector<StoredTensor> all;
  for (const parallel::ParameterGroup& group : model::parameter_groups(model)) {
    for (const parallel::Parameter& parameter : group.parts) {
      std::vector<int64_t> shape;
      for (int axis = 0; axis < parameter.shape.rank(); ++axis) shape.push_back(parameter.shape[axis]);
      all.push_back(stored(parameter.name, false, {{parameter.name, std::move(shape)}}));
    }
  }
  return all;
}

std::vector<StoredTensor> huggingface_tensors(const v1::ModelSpec& model) {
  const Sizes sizes(model);
  const int64_t vocab = model.vocab(), positions = model.max_positions();
  const int layers = static_cast<int>(model.layers());
  std::vector<StoredTensor> all;
  const auto add = [&](const char* theirs, const char* ours, std::vector<int64_t> shape) {
    all.push_back(stored(theirs, false, {{ours, std::move(shape)}}));
  };
  if (model.architecture() == v1::GPT2) {
    add("transformer.wte.weight", "embed.weight", {vocab, sizes.hidden});
    add("transformer.wpe.weight", "positions.weight", {positions, sizes.hidden});
    for (int layer = 0; layer < layers; ++layer) add_gpt2_layer(sizes, layer, all);
    add("transformer.ln_f.weight", "final_norm.weight", {sizes.hidden});
    add("transformer.ln_f.bias", "final_norm.bias", {sizes.hidden});
  } else {
    add("model.embed_tokens.weight", "embed.weight", {vocab, sizes.hidden});
    for (int layer = 0; layer < layers; ++layer) add_llama_layer(sizes, model.qkv_bias(), layer, all);
    add("model.norm.weight", "final_norm.weight", {sizes.hidden});
  }
  if (!model.tied_head()) add("lm_head.weight", "head.weight", {vocab, sizes.hidden});
  return all;
}

std::vector<StoredTensor> llmc_tensors(const v1::ModelSpec& model, int64_t padded_vocab) {
  const Sizes sizes(model);
  const int64_t hidden = sizes.hidden, ffn = sizes.ffn;
  const int layers = static_cast<int>(model.layers());
  std::vector<StoredTensor> all;
  all.push_back(stored("wte", false, {{"embed.weight", {int64_t{model.vocab()}, hidden}}}));
  all.back().shape[0] = padded_vocab;
  all.push_back(stored("wpe", false, {{"positions.weight", {int64_t{model.max_positions()}, hidden}}}));
  all.push_back(stacked("ln1w", layers, {"attn_norm.weight"}, {hidden}));
  all.push_back(stacked("ln1b", layers, {"attn_norm.bias"}, {hidden}));
  all.push_back(stacked("qkvw", layers, {"q.weight", "k.weight", "v.weight"}, {hidden, hidden}));
  all.push_back(stacked("qkvb", layers, {"q.bias", "k.bias", "v.bias"}, {hidden}));
  all.push_back(stacked("attprojw", layers, {"o.weight"}, {hidden, hidden}));
  all.push_back(stacked("attprojb", layers, {"o.bias"}, {hidden}));
  all.push_back(stacked("ln2w", layers, {"mlp_norm.weight"}, {hidden}));
  all.push_back(stacked("ln2b", layers, {"mlp_norm.bias"}, {hidden}));
  all.push_back(stacked("fcw", layers, {"up.weight"}, {ffn, hidden}));
  all.push_back(stacked("fcb", layers, {"up.bias"}, {ffn}));
  all.push_back(stacked("fcprojw", layers, {"down.weight"}, {hidden, ffn}));
  all.push_back(stacked("fcprojb", layers, {"down.bias"}, {hidden}));
  all.push_back(stored("lnfw", false, {{"final_norm.weight", {hidden}}}));
  all.push_back(stored("lnfb", false, {{"final_norm.bias", {hidden}}}));
  return all;
}

}  // namespace telar::convert
