// Output head and loss, in chunks of tokens: the logits of a whole micro-batch never exist.
#pragma once

#include "worker/model/recorder.h"

namespace telar::model {

class Head {
 public:
  // Bound on the logits that exist at once; a chunk is at least one row. Large enough that the products of a chunk fill
  // a GPU: each reads the whole weight and updates its whole gradient, so small chunks are bound by memory.
  static constexpr int64_t kChunkBytes = int64_t{512} << 20;

  struct Targets {
    engine::Tensor ids;         // i32 [tokens], -1 = not counted.
    engine::Tensor count;       // f32 [1]: counted targets of the global batch.
    engine::Tensor loss;        // f32 [1]: accumulates this micro-batch's share of the mean loss.
    engine::Tensor loss_scale;  // f32 [1]: the gradient is so many times too large. Undefined: once.
  };
  // hidden: act [tokens, C], normed. Records the loss and its gradient; returns d loss / d hidden.
  static engine::Tensor loss_and_gradient(const Recorder& recorder, engine::Tensor hidden, const Targets& targets);
  static void loss_only(const Recorder& recorder, engine::Tensor hidden, const Targets& targets);
  // Logits of one row: `row` i32 [1] picks it. act [1, padded vocabulary]
  static engine::Tensor logits_of_row(const Recorder& recorder, engine::Tensor hidden, engine::Tensor row);
};

}  // namespace telar::model
