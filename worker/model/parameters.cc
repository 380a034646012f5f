#include "worker/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace telar::model {
namespace {

using engine::Shape;
using parallel::Parameter;
using parallel::ParameterGroup;
using parallel::Partial;
using parallel::Range;

class GroupList {
 public:
  GroupList(const v1::ModelSpec& model, const Share& share) : model_(model), share_(share) {
    if (share_.stages.empty()) share_.stages = {{0, static_cast<int>(model.layers()), true, true}};
  }

  std::vector<ParameterGroup> build() {
    const int last = static_cast<int>(model_.layers()) + 1;
    const bool embedding = share_.stages.front().embedding, head = share_.stages.back().head;
    if (embedding) {
      table("embed.weight", 0);
      groups_.back().tied = share_.tied_across;
      groups_.back().written = model_.tied_head() && head;  // As the head; the embedding's own gradient comes later.
    }
    if (embedding && gpt2()) positions();
    for (const parallel::Stage& stage : share_.stages) {
      for (int layer = stage.first_layer; layer < stage.first_layer + stage.layers; ++layer) add_layer(layer);
    }
    if (!head) return std::move(groups_);
    norm("final_norm", last);
    if (model_.tied_head() && embedding) return std::move(groups_);
    table(model_.tied_head() ? "embed.weight" : "head.weight", last);
    if (model_.tied_head()) {  // A copy of the first stage's.
      groups_.back().tied = true;
      groups_.back().parts[0].primary = false;
    }
    return std::move(groups_);
  }

 private:
  bool gpt2() const { return model_.architecture() == v1::GPT2; }
  bool first_rank() const { return share_.tensor_rank == 0; }
  Range mine(int64_t n) const { return split(n, share_.tensor_size, share_.tensor_rank); }

  // Rows of the vocabulary; the gradient of a head is its product's, an embedding's is added to.
  void table(const std::string& name, int unit) {
    const Range rows = mine(model_.vocab());
    const int64_t padded = padded_vocab_share(model_, share_.tensor_size);
    Parameter part{name, Shape{int64_t{model_.vocab()}, int64_t{model_.hidden()}}, Parameter::Init::kNormal, stddev()};
    part.first = rows.first;
    part.extent = rows.count;
    groups_.push_back({name, Shape{padded, int64_t{model_.hidden()}}, true, unit, {part}, unit > 0});
  }

  void positions() {
    const Shape shape{int64_t{model_.max_positions()}, int64_t{model_.hidden()}};
    Parameter part{"positions.weight", shape, Parameter::Init::kNormal, stddev()};
    part.primary = first_rank();
    groups_.push_back({part.name, shape, true, 0, {part}});
  }

  void norm(const std::string& name, int unit) {
    const Shape shape{int64_t{model_.hidden()}};
    const auto add = [&](const std::string& full, Parameter::Init init) {
      Parameter part{full, shape, init, 0};
      part.primary = first_rank();
      part.partial = share_.tensor_size > 1 ? Partial::kTensor : Partial::kNone;
      groups_.push_back({full, shape, false, unit, {part}});
    };
    add(name + ".weight", Parameter::Init::kOnes);
    if (gpt2()) add(name + ".bias", Parameter::Init::kZeros);
  }

  // One packed matrix [sum of rows, cols] made of slices of several logical ones, and its bias.
  struct Part {
    std::string name;
    int64_t rows;  // Of the logical tensor.
    Range held;    // Of them.
    bool primary = true;
    Partial partial = Partial::kNone;
  };
  struct Columns {
    int64_t all;
    Range held;
  };
  void linear(const std::string& prefix, const std::string& packed, const std::vector<Part>& parts,
              const Columns& columns, bool bias, float deviation, int unit) {
    ParameterGroup weight{prefix + packed + ".weight", {}, true, unit, {}, true};
    ParameterGroup biases{prefix + packed + ".bias", {}, false, unit, {}};
    const bool splits_columns = columns.held.count < columns.all;
    int64_t rows = 0;
    for (const Part& part : parts) {
      Parameter matrix{prefix + part.name + ".weight", Shape{part.rows, columns.all}, Parameter::Init::kNormal,
                       deviation};
      Parameter vector{prefix + part.name + ".bias", Shape{part.rows}, Parameter::Init::kZeros, 0};
      matrix.axis = splits_columns ? 1 : 0;
      matrix.first = splits_columns ? columns.held.first : part.held.first;
      matrix.extent = splits_columns ? columns.held.count : part.held.count;
      vector.first = part.held.first;
      vector.extent = part.held.count;
      matrix.primary = part.primary;
      // Behind a product split by columns every rank has the whole bias.
      vector.primary = part.primary && (part.held.count < part.rows || first_rank());
      matrix.partial = vector.partial = part.partial;
      weight.parts.push_back(matrix);
      biases.parts.push_back(vector);
      rows += part.held.count;
    }
    weight.shape = Shape{rows, columns.held.count};
    biases.shape = Shape{rows};
    groups_.push_back(std::move(weight));
    if (bias) groups_.push_back(std::move(biases));
  }

  void add_layer(int layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int unit = layer + 1;
    const int64_t hidden = model_.hidden(), ffn = model_.ffn(), dim = model_.head_dim();
    const int64_t q = int64_t{model_.heads()} * dim;
    // Projections into the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
    const float residual = stddev() / std::sqrt(2.0f * static_cast<float>(model_.layers()));
    const Columns all_hidden{hidden, {0, hidden}};
    const Range heads = mine(model_.heads()), inner = mine(ffn);
    const Range held_q{heads.first * dim, heads.count * dim}, all_rows{0, hidden};
    norm(prefix + "attn_norm", unit);
    linear(prefix, "qkv", {{"q", q, held_q}, key_value("k"), key_value("v")}, all_hidden, model_.qkv_bias(), stddev(),
           unit);
    linear(prefix, "o", {{"o", hidden, all_rows}}, {q, held_q}, gpt2(), residual, unit);
    norm(prefix + "mlp_norm", unit);
    if (gpt2()) {
      linear(prefix, "up", {{"up", ffn, inner}}, all_hidden, true, stddev(), unit);
    } else {
      linear(prefix, "gate_up", {{"gate", ffn, inner}, {"up", ffn, inner}}, all_hidden, false, stddev(), unit);
    }
    linear(prefix, "down", {{"down", hidden, all_rows}}, {ffn, inner}, gpt2(), residual, unit);
  }

  Part key_value(const std::string& name) const {
    const int64_t heads = model_.kv_heads(), dim = model_.head_dim();
    const int copies = key_value_replicas(model_, share_.tensor_size);
    if (copies == 1) {
      const Range held = mine(heads);
      return {name, heads * dim, {held.first * dim, held.count * dim}};
    }
    const int64_t head = share_.tensor_rank / copies;
    return {name, heads * dim, {head * dim, dim}, share_.tensor_rank % copies == 0, Partial::kKeyValue};
  }

  float stddev() const { return static_cast<float>(model_.init_stddev()); }

  const v1::ModelSpec& model_;
  Share share_;
  std::vector<ParameterGroup> groups_;
};

}  // namespace

int64_t padded_vocab_share(const v1::ModelSpec& model, int tensor_size) {
  const int64_t most = (int64_t{model.vocab()} + tensor_size - 1) / tensor_size;
  return (most + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
}

Range split(int64_t n, int count, int index) {
  const int64_t first = n * index / count;
  return {first, n * (index + 1) / count - first};
}

std::vector<ParameterGroup> parameter_groups(const v1::ModelSpec& model, const Share& share) {
  return GroupList(model, share).build();
}

std::vector<std::string> layer_products(const v1::ModelSpec& model) {
  const char* const inner = model.architecture() == v1::GPT2 ? "up" : "gate_up";
  std::vector<std::string> products;
  for (uint32_t layer = 0; layer < model.layers(); ++layer) {
    for (const char* product : {"qkv", "o", inner, "down"}) {
      products.push_back("layers." + std::to_string(layer) + "." + product);
    }
  }
  return products;
}

int key_value_replicas(const v1::ModelSpec& model, int tensor_size) {
  return std::max(1, tensor_size / static_cast<int>(model.kv_heads()));
}

}  // namespace telar::model
