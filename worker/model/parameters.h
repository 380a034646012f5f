// The parameters of a model, in groups and units: what exists, not where it lives.
#pragma once

#include <string>
#include <vector>

#include "telar/v1/spec.pb.h"
#include "worker/parallel/flat_layout.h"
#include "worker/parallel/stages.h"

namespace telar::model {

// A rank's share of vocabulary rows is padded to this, so that products over the vocabulary have whole tiles.
inline constexpr int64_t kVocabMultiple = 64;

// Rows that each rank's share of the vocabulary takes.
int64_t padded_vocab_share(const v1::ModelSpec& model, int tensor_size);

// Share `index` of `count` of n things in a row, as equal as can be.
parallel::Range split(int64_t n, int count, int index);

// What one rank holds of a model.
struct Share {
  int tensor_size = 1, tensor_rank = 0;
  std::vector<parallel::Stage> stages;  // Ascending; empty: everything.
  // The embedding table is the head's, too, and first and last stage are on different ranks: both hold it.
  bool tied_across = false;
};

// Units: 0 = embeddings, 1 + i = layer i, 1 + layers = final norm and untied head. Backward runs them downwards.
// Logical names: embed.weight [V, C]; positions.weight [P, C] (GPT-2); layers.{i}.{attn_norm,q,k,v,o,mlp_norm,up,down}
// with .weight [out, in] and, where the architecture has one, .bias; layers.{i}.gate.weight (Llama); final_norm;
// head.weight [V, C] unless tied.
// Tensor parallelism: rows of q, k, v, gate, up and of the tables, columns of o and down; all else every rank has. With
// fewer key-value heads than ranks, ranks in a row have the same one.
std::vector<parallel::ParameterGroup> parameter_groups(const v1::ModelSpec& model, const Share& share = {});

// The products of the layers, from the first: "layers.{i}." and qkv, o, up (Llama: gate_up), down.
std::vector<std::string> layer_products(const v1::ModelSpec& model);

// Tensor ranks in a row that hold the same key-value head.
int key_value_replicas(const v1::ModelSpec& model, int tensor_size);

}  // namespace telar::model
