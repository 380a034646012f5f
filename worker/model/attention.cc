#include "worker/model/attention.h"

namespace telar::model {

using backend::AttentionDims;
using backend::Kernels;
using engine::Tensor;

namespace {

// Two products of [sequence, head_dim] by [head_dim, sequence] a head, half of each below the diagonal.
double attention_flops(const AttentionDims& dims) {
  return 2.0 * static_cast<double>(dims.batch * dims.heads * dims.sequence * dims.sequence * dims.head_dim);
}

}  // namespace

Tensor Attention::forward(const Recorder& recorder, Tensor x, Tensor x_amax) {
  const AttentionDims dims = recorder.attention_dims();
  packed_ = qkv_.forward(recorder, x, x_amax);  // [tokens, (H + 2K) D]
  if (recorder.rope_table.defined()) {
    recorder.program.record(prefix_ + "rope", &Kernels::rope, dims, recorder.rope_table.in(), recorder.starts.in(),
                            packed_.inout());
  }
  context_ = recorder.activation(prefix_ + "context", dims.heads * dims.head_dim);
  lse_ = recorder.program.transient(prefix_ + "lse", engine::DType::kF32, {dims.batch, dims.heads, dims.sequence},
                                    engine::MemoryClass::kActivations);
  recorder.program.record_kernel(prefix_ + "attention", attention_flops(dims), &Kernels::attention, dims, packed_.in(),
                                 recorder.starts.in(), context_.out(), lse_.out());
  return output_.forward(recorder, context_);
}

Tensor Attention::backward(const Recorder& recorder, Norm& norm, Tensor dy) {
  const AttentionDims dims = recorder.attention_dims();
  const Tensor dcontext = output_.backward(recorder, context_, dy);
  const Tensor dpacked = recorder.activation(prefix_ + "dqkv", packed_.shape().cols());
  recorder.program.record_kernel(prefix_ + "attention.backward", 2.5 * attention_flops(dims),
                                 &Kernels::attention_backward, dims, packed_.in(), recorder.starts.in(), context_.in(),
                                 lse_.in(), dcontext.in(), dpacked.out());
  if (recorder.rope_table.defined()) {
    recorder.program.record(prefix_ + "rope.backward", &Kernels::rope_backward, dims, recorder.rope_table.in(),
                            recorder.starts.in(), dpacked.inout());
  }
  return qkv_.backward(recorder, norm.output(recorder), dpacked);
}

}  // namespace telar::model
