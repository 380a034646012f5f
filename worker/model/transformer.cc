#include "worker/model/transformer.h"

#include <cmath>
#include <numbers>

namespace telar::model {

using backend::Kernels;
using engine::Tensor;

Transformer::Transformer(const v1::ModelSpec& spec) {
  for (uint32_t i = 0; i < spec.layers(); ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    layers_.push_back(
        {Norm(prefix + "attn_norm"), Attention(spec, prefix), Norm(prefix + "mlp_norm"), Mlp(spec, prefix)});
  }
}

Tensor Transformer::forward(const Recorder& recorder, Tensor ids) {
  ids_ = ids;
  const Tensor positions = recorder.gpt2() ? recorder.weight("positions.weight") : Tensor();
  Stream stream{recorder.activation("embed.y", recorder.spec.hidden()), Tensor()};
  recorder.program.record("embed", &Kernels::embedding, ids.in(), recorder.weight("embed.weight").in(), positions.in(),
                          recorder.sequence, stream.residual.out());
  for (Layer& layer : layers_) stream = layer.forward(recorder, stream);
  return final_norm_.forward(recorder, stream.residual, stream.delta).y;
}

Transformer::Stream Transformer::Layer::forward(const Recorder& recorder, Stream in) {
  const Norm::Output first = attention_norm.forward(recorder, in.residual, in.delta);
  const Norm::Output second = mlp_norm.forward(recorder, first.residual, attention.forward(recorder, first.y));
  return {second.residual, mlp.forward(recorder, second.y)};
}

void Transformer::Layer::recompute(const Recorder& recorder) {
  const engine::Program::Scope again = recorder.recompute_scope();
  const Norm::Output first = attention_norm.forward(recorder, attention_norm.residual(), Tensor());
  mlp.expand(recorder, mlp_norm.forward(recorder, first.residual, attention.forward(recorder, first.y)).y);
}

void Transformer::Layer::backward(const Recorder& recorder, Tensor dresidual) {
  mlp_norm.backward(recorder, mlp.backward(recorder, mlp_norm, dresidual), dresidual);
  attention_norm.backward(recorder, attention.backward(recorder, attention_norm, dresidual), dresidual);
}

void Transformer::backward(const Recorder& recorder, Tensor dhidden, const std::function<void(int)>& unit_done) {
  const Tensor dresidual = recorder.activation("dresidual", recorder.spec.hidden());
  recorder.program.record("dresidual.zero", &Kernels::fill, 0.0f, dresidual.out());
  final_norm_.backward(recorder, dhidden, dresidual);
  unit_done(static_cast<int>(layers_.size()) + 1);
  for (size_t i = layers_.size(); i-- > 0;) {
    // The last layer's backward follows its forward so closely that keeping it raises no peak.
    if (recorder.recomputes_layers() && i + 1 < layers_.size()) layers_[i].recompute(recorder);
    layers_[i].backward(recorder, dresidual);
    unit_done(static_cast<int>(i) + 1);
  }
  const Tensor dpositions = recorder.gpt2() ? recorder.grad("positions.weight") : Tensor();
  recorder.program.record("embed.backward", &Kernels::embedding_backward, ids_.in(), dresidual.in(), recorder.sequence,
                          recorder.grad("embed.weight").inout(), dpositions.inout());
  unit_done(0);
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
