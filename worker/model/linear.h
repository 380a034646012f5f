// y = x W^T + b, with its two backward products. Keeps nothing of the forward but, in FP8, what is small or saves more.
//
// Tensor parallelism splits a layer's products in pairs (Shoeybi et al. 2019): of the first, whose inputs are local
// tokens, each rank has some outputs of all tokens; the second takes these as its inputs and adds up over the ranks,
// which gives local tokens again. The gathers and scatters between are recorded here, whole, and the products as ones
// that can be cut by tokens: engine/decompose.h makes them overlap.
//
// In FP8 (Recorder::fp8) each operand is scaled as Recorder::scales says and rounded once, for all products that read
// it: the input with its transposed copy for the weight's gradient, which is kept instead of the input where nothing is
// recomputed; what flows back with its own. The bias and its gradient stay as they are.
#pragma once

#include <string>

#include "worker/model/recorder.h"
#include "worker/parallel/quantized.h"

namespace telar::model {

class Linear {
 public:
  enum class Split : uint8_t {
    kOutputs,  // x: local tokens, y: all tokens, this rank's columns.
    kInputs,   // x: all tokens, this rank's columns, y: local tokens. The bias is added once.
  };
  // Uses "<name>.weight" [out, in] and, if `bias`, "<name>.bias".
  Linear(std::string name, bool bias, Split split) : name_(std::move(name)), bias_(bias), split_(split) {}

  // x: act [.., in] -> act [.., out]. `x_amax`: f32 [1], its greatest magnitude, where its producer had it at hand: for
  // FP8; input_amax() and output_grad_amax() make it.
  engine::Tensor forward(const Recorder& recorder, engine::Tensor x, engine::Tensor x_amax = {});
  // As forward(), which gives `before`, with its GELU as `after`. kOutputs only. `after_amax` gets that of `after`.
  struct Activated {
    engine::Tensor before, after;
  };
  Activated forward_gelu(const Recorder& recorder, engine::Tensor x, const std::string& after_name,
                         engine::Tensor x_amax = {}, engine::Tensor after_amax = {});
  // x: what forward got, or the same computed again; dy: act [.., out] -> act [.., in]. The gradients of the weight
  // and, if `with_bias`, of the bias accumulate; the weight's first one is written.
  engine::Tensor backward(const Recorder& recorder, engine::Tensor x, engine::Tensor dy, bool with_bias = true,
                          engine::Tensor dy_amax = {}) const;
  // Undefined where nobody would read them.
  engine::Tensor input_amax(const Recorder& recorder) const { return amax_tensor(recorder, name_ + ".x", true); }
  engine::Tensor output_grad_amax(const Recorder& recorder) const {
    return amax_tensor(recorder, name_ + ".dy", recorder.tensor_size() == 1 || split_ == Split::kOutputs);
  }
  // Whether backward() reads x; else it reads what for_each_kept() visits.
  bool reads_input(const Recorder& recorder) const { return !keeps_input(recorder); }
  void for_each_kept(const Recorder& recorder, const TensorVisitor& visit) {
    if (!keeps_input(recorder)) return;
    visit(input_.columns);
    if (recorder.scales->are_in_blocks()) visit(input_.columns_inverse);
  }
  // For whoever accumulates the bias's gradient elsewhere. Undefined without a bias.
  engine::Tensor bias_grad(const Recorder& recorder) const;

 private:
  engine::Tensor bias(const Recorder& recorder) const;
  void weight_gradient(const Recorder& recorder, engine::Tensor x, engine::Tensor dy, bool with_bias) const;
  // Gathered again rather than kept where ranks have their shares of tokens; see backward().
  bool keeps_input(const Recorder& recorder) const {
    return recorder.fp8 != nullptr && recorder.grads != nullptr && recorder.recomputes_nothing() &&
           (split_ == Split::kInputs || recorder.tensor_size() == 1);
  }
  // `is_rounded`: that, and not what is gathered of it.
  engine::Tensor amax_tensor(const Recorder& recorder, const std::string& name, bool is_rounded) const {
    const bool is_read = recorder.fp8 != nullptr && is_rounded && recorder.scales->are_current();
    return is_read ? parallel::amax_tensor(recorder.program, name) : engine::Tensor();
  }
  engine::Tensor fp8_forward(const Recorder& recorder, engine::Tensor x, engine::Tensor x_amax);
  engine::Tensor fp8_backward(const Recorder& recorder, engine::Tensor x, engine::Tensor dy, bool with_bias,
                              engine::Tensor dy_amax) const;
  // The transposed copy of q, from the one that it has.
  void record_columns(const Recorder& recorder, const std::string& name, parallel::Quantized& q) const;
  // y = x W^T of one micro-batch, both with rows along the sums.
  void fp8_product(const Recorder& recorder, const std::string& name, const parallel::Quantized& x,
                   engine::Tensor weight, engine::Tensor weight_inverse, engine::Tensor bias, bool fast,
                   engine::Tensor y) const;
  void fp8_weight_gradient(const Recorder& recorder, const parallel::Quantized& x, const parallel::Quantized& dy,
                           engine::Tensor dy_of_bias) const;

  std::string name_;
  bool bias_;
  Split split_;
  engine::Tensor input_amax_;  // FP8: of the forward's x.
  parallel::Quantized input_;  // FP8, if keeps_input(): its transposed copy.
};

}  // namespace telar::model
