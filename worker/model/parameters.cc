#include "worker/model/parameters.h"

#include <cmath>
#include <string>

namespace telar::model {
namespace {

using engine::Shape;
using parallel::Parameter;
using parallel::ParameterGroup;

class GroupList {
 public:
  explicit GroupList(const v1::ModelSpec& model) : model_(model) {}

  std::vector<ParameterGroup> build() {
    table("embed.weight", model_.vocab(), padded_vocab(model_), 0);
    if (gpt2()) table("positions.weight", model_.max_positions(), model_.max_positions(), 0);
    for (uint32_t layer = 0; layer < model_.layers(); ++layer) add_layer(static_cast<int>(layer));
    const int last = static_cast<int>(model_.layers()) + 1;
    norm("final_norm", last);
    if (!model_.tied_head()) table("head.weight", model_.vocab(), padded_vocab(model_), last);
    return std::move(groups_);
  }

 private:
  bool gpt2() const { return model_.architecture() == v1::GPT2; }

  void table(const std::string& name, int64_t rows, int64_t padded_rows, int unit) {
    const int64_t hidden = model_.hidden();
    groups_.push_back({name,
                       Shape{padded_rows, hidden},
                       true,
                       unit,
                       {{name, Shape{rows, hidden}, Parameter::Init::kNormal, stddev()}}});
  }

  void norm(const std::string& name, int unit) {
    const Shape shape{model_.hidden()};
    groups_.push_back({name + ".weight", shape, false, unit, {{name + ".weight", shape, Parameter::Init::kOnes, 0}}});
    if (gpt2()) {
      groups_.push_back({name + ".bias", shape, false, unit, {{name + ".bias", shape, Parameter::Init::kZeros, 0}}});
    }
  }

  // One packed matrix [sum of rows, cols] made of several logical ones, and its bias.
  struct Part {
    std::string name;
    int64_t rows;
  };
  void linear(const std::string& prefix, const std::string& packed, const std::vector<Part>& parts, int64_t cols,
              bool bias, float deviation, int unit) {
    ParameterGroup weight{prefix + packed + ".weight", {}, true, unit, {}};
    ParameterGroup biases{prefix + packed + ".bias", {}, false, unit, {}};
    int64_t rows = 0;
    for (const Part& part : parts) {
      weight.parts.push_back(
          {prefix + part.name + ".weight", Shape{part.rows, cols}, Parameter::Init::kNormal, deviation});
      biases.parts.push_back({prefix + part.name + ".bias", Shape{part.rows}, Parameter::Init::kZeros, 0});
      rows += part.rows;
    }
    weight.shape = Shape{rows, cols};
    biases.shape = Shape{rows};
    groups_.push_back(std::move(weight));
    if (bias) groups_.push_back(std::move(biases));
  }

  void add_layer(int layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int unit = layer + 1;
    const int64_t hidden = model_.hidden(), ffn = model_.ffn();
    const int64_t q = int64_t{model_.heads()} * model_.head_dim(), kv = int64_t{model_.kv_heads()} * model_.head_dim();
    // Projections into the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
    const float residual = stddev() / std::sqrt(2.0f * static_cast<float>(model_.layers()));
    norm(prefix + "attn_norm", unit);
    linear(prefix, "qkv", {{"q", q}, {"k", kv}, {"v", kv}}, hidden, model_.qkv_bias(), stddev(), unit);
    linear(prefix, "o", {{"o", hidden}}, q, gpt2(), residual, unit);
    norm(prefix + "mlp_norm", unit);
    if (gpt2()) {
      linear(prefix, "up", {{"up", ffn}}, hidden, true, stddev(), unit);
    } else {
      linear(prefix, "gate_up", {{"gate", ffn}, {"up", ffn}}, hidden, false, stddev(), unit);
    }
    linear(prefix, "down", {{"down", hidden}}, ffn, gpt2(), residual, unit);
  }

  float stddev() const { return static_cast<float>(model_.init_stddev()); }

  const v1::ModelSpec& model_;
  std::vector<ParameterGroup> groups_;
};

}  // namespace

int64_t padded_vocab(const v1::ModelSpec& model) {
  return (int64_t{model.vocab()} + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
}

std::vector<ParameterGroup> parameter_groups(const v1::ModelSpec& model) { return GroupList(model).build(); }

bool written_by_product(const v1::ModelSpec& model, const ParameterGroup& group) {
  if (group.name == "embed.weight") return model.tied_head();  // As the head; the embedding's own gradient comes later.
  return group.decays && group.name != "positions.weight";
}

}  // namespace telar::model
