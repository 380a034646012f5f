// One stage of the network, one micro-batch: reads like the paper. Forward keeps what backward needs as transients of
// the program; a Transformer therefore records one forward, and one backward after it.
//
// What is kept is what backward ops read. Where they read a tensor that was recorded again, the forward's own ends its
// life in the forward; nobody has to drop it. Bytes a token and layer, with 2-byte activations of width C, inner width
// F (twice that before SwiGLU), H query and K key-value heads of dimension D:
//   none       2 (4 C + (2 H + 2 K) D + 2 F or 3 F) + 4 H + 8 or 16: residual stream and norm output twice, packed
//              projections, attention's output and log-sums, the activation's input and output, norm statistics
//   selective  2 (2 C + (2 H + 2 K) D + F or 2 F) + 4 H: without norm outputs and the activation's output
//   full       2 C: the residual stream that enters the layer
// In FP8 with `none`, layers keep their inputs' transposed copies, of a byte, instead of norm outputs and the
// activation's output, and one of attention's output beside it: 2 C + F less, H D more.
#pragma once

#include <functional>
#include <vector>

#include "worker/model/attention.h"
#include "worker/model/head.h"
#include "worker/model/mlp.h"
#include "worker/model/norm.h"
#include "worker/parallel/stages.h"

namespace telar::model {

class Transformer {
 public:
  Transformer(const v1::ModelSpec& spec, const parallel::Stage& stage);

  // in: with the embedding, ids i32 [tokens]; else what the stage before gave. Returns, with the head, the final norm's
  // output, else the residual stream. Both act [local tokens, hidden].
  engine::Tensor forward(const Recorder& recorder, engine::Tensor in);
  // dout: gradient of forward's result, which without a head is changed in place. Returns the gradient of `in`,
  // undefined where that is ids. `unit_done(unit)` is called when all gradients of a unit (see parameters.h) are
  // recorded, from the last unit of the stage down; where some of them are deferred, by the last of those.
  engine::Tensor backward(const Recorder& recorder, engine::Tensor dout,
                          const std::function<void(int unit)>& unit_done);
  // With Recorder::offload, ahead of backward(): what its first layer reads comes back beside what is recorded next.
  void fetch(const Recorder& recorder);

 private:
  // What one layer hands to the next. The add is left to the next norm, which does it in passing.
  struct Stream {
    engine::Tensor residual;
    engine::Tensor delta;  // What the last block adds; undefined behind the embedding.
  };
  struct Layer {
    Stream forward(const Recorder& recorder, Stream in);
    // Forward again from the residual stream that entered, up to the last tensor that backward reads.
    void recompute(const Recorder& recorder);
    void backward(const Recorder& recorder, engine::Tensor dresidual);
    // What backward(), or recompute(), reads of the forward's.
    void for_each_kept(const Recorder& recorder, const TensorVisitor& visit);

    Norm attention_norm;
    Attention attention;
    Norm mlp_norm;
    Mlp mlp;
    Offload::Trip trip;
  };
  // The recorder as layer `index` of the stage gets it.
  Recorder of_layer(const Recorder& recorder, size_t index) const;
  void send_layer(const Recorder& recorder, size_t index);
  void fetch_layer(const Recorder& recorder, size_t index);
  // Kept, whatever else is computed again: its backward begins so soon that this raises no peak.
  bool is_kept(const Recorder& recorder, size_t index) const {
    return recorder.backward_follows && index + 1 == layers_.size();
  }
  engine::Tensor embed(const Recorder& recorder, engine::Tensor ids) const;
  void embed_backward(const Recorder& recorder, engine::Tensor dresidual) const;

  const parallel::Stage stage_;
  const int head_unit_;  // See parameters.h.
  std::vector<Layer> layers_;
  Norm final_norm_{"final_norm"};
  engine::Tensor ids_;
};

// The cosines and sines of rotary positions: f32 [sequence, head_dim], a row holds head_dim / 2 cosines, then as many
// sines. Frequencies: theta^(-2i / head_dim); with rope_scaling, Llama 3.1's: long wavelengths are divided by
// `factor`, short ones stay, those between are blended.
std::vector<float> rope_table(const v1::ModelSpec& spec, int64_t sequence);

}  // namespace telar::model
