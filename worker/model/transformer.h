// The whole network, one micro-batch: reads like the paper. Forward keeps what backward needs as transients of the
// program; a Transformer therefore records one forward, and one backward after it.
#pragma once

#include <functional>
#include <vector>

#include "worker/model/attention.h"
#include "worker/model/head.h"
#include "worker/model/mlp.h"
#include "worker/model/norm.h"

namespace telar::model {

class Transformer {
 public:
  explicit Transformer(const v1::ModelSpec& spec);

  // ids: i32 [tokens] -> the final norm's output, act [tokens, hidden].
  engine::Tensor forward(const Recorder& recorder, engine::Tensor ids);
  // dhidden: gradient of forward's result. `unit_done(unit)` is called when all gradients of a unit (see
  // parameters.h) have been recorded, from the last unit down to 0.
  void backward(const Recorder& recorder, engine::Tensor dhidden, const std::function<void(int unit)>& unit_done);

 private:
  struct Layer {
    Norm attention_norm;
    Attention attention;
    Norm mlp_norm;
    Mlp mlp;
  };
  std::vector<Layer> layers_;
  Norm final_norm_{"final_norm"};
  engine::Tensor ids_;
};

// The cosines and sines of rotary positions: f32 [sequence, head_dim], a row holds head_dim / 2 cosines, then as many
// sines. Frequencies: theta^(-2i / head_dim); with rope_scaling, Llama 3.1's: long wavelengths are divided by
// `factor`, short ones stay, those between are blended.
std::vector<float> rope_table(const v1::ModelSpec& spec, int64_t sequence);

}  // namespace telar::model
