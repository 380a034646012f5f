#include "worker/model/transformer.h"

#include <cmath>
#include <numbers>

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Transformer::Transformer(const v1::ModelSpec& spec, const parallel::Stage& stage)
    : stage_(stage), head_unit_(static_cast<int>(spec.layers()) + 1) {
  for (int i = stage.first_layer; i < stage.first_layer + stage.layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    layers_.push_back(
        {Norm(prefix + "attn_norm"), Attention(spec, prefix), Norm(prefix + "mlp_norm"), Mlp(spec, prefix)});
  }
}

// Each tensor rank looks up the ids that it has rows for; one of them brings the positions in.
Tensor Transformer::embed(const Recorder& recorder, Tensor ids) const {
  const bool with_positions = recorder.gpt2() && recorder.tensor_rank() == 0;
  const Tensor positions = with_positions ? recorder.weight("positions.weight") : Tensor();
  const Tensor y = recorder.activation("embed.y", recorder.spec.hidden());
  recorder.program.record("embed", &Kernels::embedding, ids.in(), recorder.vocab_slice(),
                          recorder.weight("embed.weight").in(), positions.in(), recorder.starts.in(), recorder.sequence,
                          y.out());
  return recorder.scatter_tokens("embed.y", y);
}

Tensor Transformer::forward(const Recorder& recorder, Tensor in) {
  Stream stream{in, Tensor()};
  if (stage_.embedding) {
    ids_ = in;
    stream.residual = embed(recorder, in);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (recorder.offload != nullptr) recorder.offload->begin_layer();
    stream = layers_[i].forward(of_layer(recorder, i), stream);
    send_layer(recorder, i);
  }
  if (stage_.head) return final_norm_.forward(recorder, stream.residual, stream.delta).y;
  const Tensor out = recorder.local_activation("stage.y", recorder.spec.hidden());
  recorder.program.record("stage.y", &Kernels::add, stream.residual.in(), stream.delta.in(), out.out());
  return out;
}

Transformer::Stream Transformer::Layer::forward(const Recorder& recorder, Stream in) {
  const Norm::Output first = attention_norm.forward(recorder, in.residual, in.delta, attention.input_amax(recorder));
  const Tensor delta = attention.forward(recorder, first.y, first.y_amax);
  const Norm::Output second = mlp_norm.forward(recorder, first.residual, delta, mlp.input_amax(recorder));
  return {second.residual, mlp.forward(recorder, second.y, second.y_amax)};
}

Recorder Transformer::of_layer(const Recorder& recorder, size_t index) const {
  Recorder own = recorder;
  if (own.fp8 != nullptr && !own.fp8->layers[static_cast<size_t>(stage_.first_layer) + index]) own.fp8 = nullptr;
  return own;
}

void Transformer::Layer::recompute(const Recorder& recorder) {
  const engine::Program::Scope again = recorder.recompute_scope();
  const Norm::Output first =
      attention_norm.forward(recorder, attention_norm.residual(), Tensor(), attention.input_amax(recorder));
  const Tensor delta = attention.forward(recorder, first.y, first.y_amax);
  const Norm::Output second = mlp_norm.forward(recorder, first.residual, delta, mlp.input_amax(recorder));
  mlp.expand(recorder, second.y, second.y_amax);
}

void Transformer::Layer::backward(const Recorder& recorder, Tensor dresidual) {
  mlp_norm.backward(recorder, mlp.backward(recorder, mlp_norm, dresidual), dresidual);
  attention_norm.backward(recorder, attention.backward(recorder, attention_norm, dresidual), dresidual);
}

void Transformer::Layer::for_each_kept(const Recorder& recorder, const TensorVisitor& visit) {
  if (recorder.recomputes_layers()) return visit(attention_norm.residual());
  attention_norm.for_each_kept(recorder, attention.reads_input(recorder), visit);
  attention.for_each_kept(recorder, visit);
  mlp_norm.for_each_kept(recorder, mlp.reads_input(recorder), visit);
  mlp.for_each_kept(recorder, visit);
}

void Transformer::send_layer(const Recorder& recorder, size_t index) {
  const bool stays = recorder.backward_follows && index + Offload::kStay >= layers_.size();
  if (recorder.offload == nullptr || stays) return;
  Layer& layer = layers_[index];
  recorder.offload->send(layer.trip, "offload." + std::to_string(stage_.first_layer + static_cast<int>(index)),
                         [&](const TensorVisitor& visit) { layer.for_each_kept(of_layer(recorder, index), visit); });
}

void Transformer::fetch_layer(const Recorder& recorder, size_t index) {
  Layer& layer = layers_[index];
  recorder.offload->fetch(layer.trip,
                          [&](const TensorVisitor& visit) { layer.for_each_kept(of_layer(recorder, index), visit); });
}

void Transformer::fetch(const Recorder& recorder) {
  if (recorder.offload != nullptr && !layers_.empty()) fetch_layer(recorder, layers_.size() - 1);
}

Tensor Transformer::backward(const Recorder& recorder, Tensor dout, const std::function<void(int)>& unit_done) {
  // Recorded behind the unit's weight gradients, wherever those go.
  const auto done = [&](int unit) { recorder.weight_gradient([unit_done, unit] { unit_done(unit); }); };
  Tensor dresidual = dout;
  if (stage_.head) {
    dresidual = recorder.local_activation("dresidual", recorder.spec.hidden());
    recorder.program.record("dresidual.zero", &Kernels::fill, 0.0f, dresidual.out());
    final_norm_.backward(recorder, dout, dresidual);
    unit_done(head_unit_);  // Nothing of it is deferred.
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    if (recorder.offload != nullptr) {
      recorder.offload->begin_layer();
      fetch_layer(recorder, i);  // Unless it is there.
      if (i > 0) fetch_layer(recorder, i - 1);
    }
    if (recorder.recomputes_layers() && !is_kept(recorder, i)) layers_[i].recompute(of_layer(recorder, i));
    if (i == 0 && stage_.embedding) break;
    layers_[i].backward(of_layer(recorder, i), dresidual);
    done(stage_.first_layer + static_cast<int>(i) + 1);
  }
  if (!stage_.embedding) return dresidual;
  // The embedding's gradient is as large as a layer's or larger, and the last to be known: where it has a way to go, it
  // goes before the first layer's weight gradients, which need as long.
  Deferred behind;
  Recorder first = recorder;
  if (recorder.deferred == nullptr && recorder.grads->sends_next(0)) first.deferred = &behind;
  layers_[0].backward(of_layer(first, 0), dresidual);
  first.weight_gradient([unit_done] { unit_done(1); });
  embed_backward(recorder, dresidual);
  done(0);
  for (const std::function<void()>& gradient : behind) gradient();
  return Tensor();
}

void Transformer::embed_backward(const Recorder& recorder, Tensor dresidual) const {
  const Tensor dy = recorder.gather_tokens("embed.dy", dresidual);
  recorder.weight_gradient([recorder, ids = ids_, dy] {
    const Tensor dpositions = recorder.gpt2() ? recorder.grad("positions.weight") : Tensor();
    recorder.program.record("embed.backward", &Kernels::embedding_backward, ids.in(), recorder.vocab_slice(), dy.in(),
                            recorder.starts.in(), recorder.sequence, recorder.grad("embed.weight").inout(),
                            dpositions.inout());
  });
}

namespace {

double scaled_frequency(double frequency, const v1::RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = scaling.original_max_positions();
  if (wavelength < original / scaling.high_freq_factor()) return frequency;
  if (wavelength > original / scaling.low_freq_factor()) return frequency / scaling.factor();
  const double smooth =
      (original / wavelength - scaling.low_freq_factor()) / (scaling.high_freq_factor() - scaling.low_freq_factor());
  return (1 - smooth) * frequency / scaling.factor() + smooth * frequency;
}

}  // namespace

std::vector<float> rope_table(const v1::ModelSpec& spec, int64_t sequence) {
  const int64_t dim = spec.head_dim(), half = dim / 2;
  std::vector<float> table(static_cast<size_t>(sequence * dim));
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(spec.rope_theta(), -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    if (spec.has_rope_scaling()) frequency = scaled_frequency(frequency, spec.rope_scaling());
    for (int64_t t = 0; t < sequence; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      table[static_cast<size_t>(t * dim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(t * dim + half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace telar::model
