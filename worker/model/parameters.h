// The parameters of a model, in groups and units: what exists, not where it lives.
#pragma once

#include <vector>

#include "telar/v1/spec.pb.h"
#include "worker/parallel/flat_layout.h"

namespace telar::model {

// Rows of the embedding and head are padded to this, so that products over the vocabulary have whole tiles.
inline constexpr int64_t kVocabMultiple = 64;
int64_t padded_vocab(const v1::ModelSpec& model);

// Units: 0 = embeddings, 1 + i = layer i, 1 + layers = final norm and untied head. Backward runs them downwards.
// Logical names: embed.weight [V, C]; positions.weight [P, C] (GPT-2); layers.{i}.{attn_norm,q,k,v,o,mlp_norm,up,down}
// with .weight [out, in] and, where the architecture has one, .bias; layers.{i}.gate.weight (Llama); final_norm;
// head.weight [V, C] unless tied.
std::vector<parallel::ParameterGroup> parameter_groups(const v1::ModelSpec& model);

// Whether the first micro-batch's weight-gradient product writes the whole gradient of `group` (Linear, Head). What is
// not written is only added to, and is zeroed before: norms and biases, position tables, an untied embedding.
bool written_by_product(const v1::ModelSpec& model, const parallel::ParameterGroup& group);

}  // namespace telar::model
