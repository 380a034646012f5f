// Output head and loss, in chunks of tokens: the logits of a whole micro-batch never exist.
#pragma once

#include "worker/model/recorder.h"

namespace telar::model {

class Head {
 public:
  // The usual bound on the logits that exist at once; a chunk is at least one row. Large, because the products of each
  // chunk read the whole weight and update its whole f32 gradient, and because d loss / d hidden of a chunk has only
  // rows / 128 x hidden / 256 tiles for a GPU of 132 multiprocessors.
  static constexpr int64_t kChunkBytes = int64_t{2} << 30;
  static constexpr int64_t kRowMultiple = 256;  // A whole number of any product's tiles.

  // Rows a chunk of `tokens` rows of logits of `row_bytes` each: as few chunks as the bound allows, all alike but for
  // what rounding their rows up to whole tiles takes from the last.
  static int64_t chunk_rows(int64_t tokens, int64_t row_bytes, int64_t bound = kChunkBytes);

  struct Targets {
    engine::Tensor ids;         // i32 [tokens], -1 = not counted.
    engine::Tensor count;       // f32 [1]: counted targets of the global batch.
    engine::Tensor loss;        // f32 [1]: accumulates this micro-batch's share of the mean loss.
    engine::Tensor loss_scale;  // f32 [1]: the gradient is so many times too large. Undefined: once.
  };
  // hidden: act [local tokens, C], normed. Records the loss and its gradient; returns d loss / d hidden. The weight's
  // gradient is added to; where nothing has been written yet, the first chunk writes it, padding rows included. Of a
  // tensor group every rank gets the whole loss.
  static engine::Tensor loss_and_gradient(const Recorder& recorder, engine::Tensor hidden, const Targets& targets);
  static void loss_only(const Recorder& recorder, engine::Tensor hidden, const Targets& targets);
  // Logits of one row: `row` i32 [1] picks it. out: act [1, padded share of the vocabulary]
  static void logits_of_row(const Recorder& recorder, engine::Tensor hidden, engine::Tensor row, engine::Tensor out);
};

}  // namespace telar::model
