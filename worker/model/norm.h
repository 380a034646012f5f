// The norm in front of a block, with the residual add before it: LayerNorm for GPT-2, RMSNorm for Llama.
#pragma once

#include <string>

#include "worker/model/recorder.h"

namespace telar::model {

class Norm {
 public:
  explicit Norm(std::string name) : name_(std::move(name)) {}

  struct Output {
    engine::Tensor residual;  // residual + delta: the residual stream behind the add. act [local tokens, hidden]
    engine::Tensor y;         // Normed. act [local tokens, hidden]
    engine::Tensor y_amax;    // As asked for.
  };
  // `delta` may be undefined: then the residual stream goes on as it is. `y_amax`: f32 [1], gets y's greatest
  // magnitude; undefined if nobody wants to know.
  Output forward(const Recorder& recorder, engine::Tensor residual, engine::Tensor delta, engine::Tensor y_amax = {});
  // For the backward, forward's y again: as kept, or normed a second time from the sum, which is always kept. The same
  // bits, since what is normed is the sum as stored.
  engine::Tensor output(const Recorder& recorder);
  // The residual stream behind the add.
  engine::Tensor& residual() { return x_; }
  // dresidual: gradient of the residual stream behind this norm's tap; accumulates what flows back through it.
  // Since the add has slope one, it is then the gradient of both `residual` and `delta`.
  void backward(const Recorder& recorder, engine::Tensor dy, engine::Tensor dresidual);
  // What the backward reads of the forward's, and, if `reads_output`, what output() does.
  void for_each_kept(const Recorder& recorder, bool reads_output, const TensorVisitor& visit) {
    visit(x_);
    if (recorder.recomputes_cheap_ops()) return;
    if (reads_output) visit(y_);
    for (engine::Tensor* kept : {&mean_, &rstd_}) visit(*kept);
  }

 private:
  void normalize(const Recorder& recorder, engine::Tensor residual, engine::Tensor delta, engine::Tensor sum,
                 engine::Tensor y_amax);

  std::string name_;
  engine::Tensor x_, y_, mean_, rstd_;
};

}  // namespace telar::model
