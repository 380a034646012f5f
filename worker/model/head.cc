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

// Records the product for each chunk and hands the chunk on. `hidden` is whole in its tokens.
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

// The statistics of a chunk's logits over every tensor rank's slice of the vocabulary.
Tensor gathered_parts(const Recorder& recorder, const Chunk& chunk) {
  const int64_t ranks = recorder.tensor_size();
  const auto statistics = [&](const char* name, int64_t slices) {
    return recorder.program.transient(chunk.name + name, engine::DType::kF32, {slices, 3, chunk.rows},
                                      MemoryClass::kCommunication);
  };
  const Tensor mine = statistics(".parts", 1), all = statistics(".all_parts", ranks);
  recorder.program.record(chunk.name + ".parts", &Kernels::softmax_parts, chunk.targets.in(), recorder.vocab_slice(),
                          chunk.logits.in(), mine.out());
  const engine::Program::Scope scope(recorder.program, "", engine::Phase::kTensorComm);
  recorder.program.record(chunk.name + ".gather", recorder.groups.id(parallel::Role::kTensor),
                          &backend::Communicator::all_gather, mine.in(), all.out());
  return all;
}

// The chunk's loss; its logits become their gradient.
void record_loss(const Recorder& recorder, const Chunk& chunk, const Head::Targets& targets) {
  if (recorder.tensor_size() == 1) {
    recorder.program.record(chunk.name + ".loss", &Kernels::cross_entropy, chunk.targets.in(), targets.count.in(),
                            targets.loss_scale.in(), int64_t{recorder.spec.vocab()}, chunk.logits.inout(),
                            targets.loss.inout());
    return;
  }
  recorder.program.record(chunk.name + ".loss", &Kernels::cross_entropy_parts, chunk.targets.in(), targets.count.in(),
                          targets.loss_scale.in(), recorder.vocab_slice(), gathered_parts(recorder, chunk).in(),
                          chunk.logits.inout(), targets.loss.inout());
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
  hidden = recorder.gather_tokens("head.x", hidden);
  const Tensor weight = recorder.weight(head_weight(recorder));
  const Tensor dhidden = recorder.activation("head.dx", hidden.shape().cols());
  for_each_chunk(recorder, hidden, targets.ids, [&](const Chunk& chunk) {
    const double flops = 2.0 * static_cast<double>(chunk.rows * weight.elements());
    record_loss(recorder, chunk, targets);
    recorder.program.record_kernel(chunk.name + ".dgrad", flops, &Kernels::linear_dgrad, chunk.logits.in(), weight.in(),
                                   dhidden.rows(chunk.first, chunk.rows).out());
    const bool adds = recorder.grads->adds(head_weight(recorder));
    recorder.program.record_kernel(chunk.name + ".wgrad", flops, &Kernels::linear_wgrad, chunk.logits.in(),
                                   chunk.hidden.in(), adds, recorder.grad(head_weight(recorder)).inout(),
                                   Tensor().inout());
  });
  return recorder.scatter_tokens("head.dx", dhidden);
}

void Head::loss_only(const Recorder& recorder, Tensor hidden, const Targets& targets) {
  hidden = recorder.gather_tokens("head.x", hidden);
  for_each_chunk(recorder, hidden, targets.ids, [&](const Chunk& chunk) {
    if (recorder.tensor_size() == 1) {
      recorder.program.record(chunk.name + ".loss", &Kernels::cross_entropy_loss, chunk.targets.in(),
                              targets.count.in(), int64_t{recorder.spec.vocab()}, chunk.logits.in(),
                              targets.loss.inout());
      return;
    }
    recorder.program.record(chunk.name + ".loss", &Kernels::cross_entropy_loss_parts, chunk.targets.in(),
                            targets.count.in(), gathered_parts(recorder, chunk).in(), targets.loss.inout());
  });
}

void Head::logits_of_row(const Recorder& recorder, Tensor hidden, Tensor row, Tensor out) {
  hidden = recorder.gather_tokens("head.x", hidden);
  // Picking a row is an embedding lookup with the hidden states as the table.
  const Tensor picked =
      recorder.program.transient("head.row", recorder.act, {1, hidden.shape().cols()}, MemoryClass::kActivations);
  const backend::VocabSlice rows{0, recorder.tokens(), recorder.tokens()};
  recorder.program.record("head.pick", &Kernels::embedding, row.in(), rows, hidden.in(), Tensor().in(), Tensor().in(),
                          int64_t{1}, picked.out());
  const Tensor weight = recorder.weight(head_weight(recorder));
  recorder.program.record("head", &Kernels::linear, picked.in(), weight.in(), Tensor().in(), out.out());
}

}  // namespace telar::model
