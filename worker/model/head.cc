#include "worker/model/head.h"

#include <algorithm>

namespace telar::model {

using backend::Kernels;
using engine::MemoryClass;
using engine::Tensor;

namespace {

std::string head_weight(const Recorder& recorder) { return recorder.spec.tied_head() ? "embed.weight" : "head.weight"; }

struct Chunk {
  std::string name;
  Tensor hidden, targets, logits;
  int64_t first = 0, rows = 0;
};

// Records the product for each chunk and hands the chunk on.
template <typename Body>
void for_each_chunk(const Recorder& recorder, Tensor hidden, Tensor targets, Body body) {
  const Tensor weight = recorder.weight(head_weight(recorder));
  const int64_t vocab = weight.shape()[0], width = weight.shape()[1];
  const int64_t step =
      Head::chunk_rows(recorder.tokens(), vocab * static_cast<int64_t>(size_of(recorder.act)), recorder.logits_bytes);
  for (int64_t first = 0, index = 0; first < recorder.tokens(); first += step, ++index) {
    Chunk chunk;
    chunk.first = first;
    chunk.rows = std::min(step, recorder.tokens() - first);
    chunk.name = "head.chunk" + std::to_string(index);
    chunk.hidden = hidden.rows(first, chunk.rows);
    chunk.targets = targets.slice(first, {chunk.rows});
    chunk.logits =
        recorder.program.transient(chunk.name + ".logits", recorder.act, {chunk.rows, vocab}, MemoryClass::kWorkspace);
    recorder.program.record_kernel(chunk.name, 2.0 * static_cast<double>(chunk.rows * vocab * width), &Kernels::linear,
                                   chunk.hidden.in(), weight.in(), Tensor().in(), chunk.logits.out());
    body(chunk);
  }
}

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace

int64_t Head::chunk_rows(int64_t tokens, int64_t row_bytes, int64_t bound) {
  const int64_t limit = std::max<int64_t>(bound / row_bytes, 1);
  const int64_t rows = ceil_div(tokens, ceil_div(tokens, limit));
  const int64_t whole_tiles = ceil_div(rows, kRowMultiple) * kRowMultiple;
  return std::min(whole_tiles <= limit ? whole_tiles : rows, tokens);
}

Tensor Head::loss_and_gradient(const Recorder& recorder, Tensor hidden, const Targets& targets) {
  const Tensor weight = recorder.weight(head_weight(recorder));
  const Tensor dweight = recorder.grad(head_weight(recorder));
  const Tensor dhidden = recorder.activation("head.dx", hidden.shape().cols());
  for_each_chunk(recorder, hidden, targets.ids, [&](const Chunk& chunk) {
    const double flops = 2.0 * static_cast<double>(chunk.rows * weight.elements());
    recorder.program.record(chunk.name + ".loss", &Kernels::cross_entropy, chunk.targets.in(), targets.count.in(),
                            targets.loss_scale.in(), int64_t{recorder.spec.vocab()}, chunk.logits.inout(),
                            targets.loss.inout());
    recorder.program.record_kernel(chunk.name + ".dgrad", flops, &Kernels::linear_dgrad, chunk.logits.in(), weight.in(),
                                   dhidden.rows(chunk.first, chunk.rows).out());
    const bool accumulate = !recorder.first_micro_batch || chunk.first > 0;
    recorder.program.record_kernel(chunk.name + ".wgrad", flops, &Kernels::linear_wgrad, chunk.logits.in(),
                                   chunk.hidden.in(), accumulate, dweight.inout(), Tensor().inout());
  });
  return dhidden;
}

void Head::loss_only(const Recorder& recorder, Tensor hidden, const Targets& targets) {
  for_each_chunk(recorder, hidden, targets.ids, [&](const Chunk& chunk) {
    recorder.program.record(chunk.name + ".loss", &Kernels::cross_entropy_loss, chunk.targets.in(), targets.count.in(),
                            int64_t{recorder.spec.vocab()}, chunk.logits.in(), targets.loss.inout());
  });
}

Tensor Head::logits_of_row(const Recorder& recorder, Tensor hidden, Tensor row) {
  // Picking a row is an embedding lookup with the hidden states as the table.
  const Tensor picked =
      recorder.program.transient("head.row", recorder.act, {1, hidden.shape().cols()}, MemoryClass::kActivations);
  recorder.program.record("head.pick", &Kernels::embedding, row.in(), hidden.in(), Tensor().in(), int64_t{1},
                          picked.out());
  const Tensor weight = recorder.weight(head_weight(recorder));
  const Tensor out =
      recorder.program.persistent("head.row_logits", recorder.act, {1, weight.shape()[0]}, MemoryClass::kIo);
  recorder.program.record("head", &Kernels::linear, picked.in(), weight.in(), Tensor().in(), out.out());
  return out;
}

}  // namespace telar::model
