// What the FP8 tensors of a program are scaled by.
//
// Current: a tensor's greatest magnitude is looked for before it is quantised. Delayed: it is known before, from those
// that the tensor of the same place had in earlier steps, which the run keeps: a row of the history for each, the
// newest first. What a step's tensors have is seen in passing when they are quantised, over all micro-batches and, as
// one reduction, all ranks; so all ranks have the history of all tensors, alike. Where it knows nothing yet, as in a
// run's first step, the magnitude is looked for as in `current`. Blocks: runs of 128 elements along a product's sums,
// of weights squares of 128, are each scaled as a tensor is in `current`.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "worker/engine/program.h"
#include "worker/parallel/quantized.h"

namespace telar::parallel {

// A product's operands: x and W of y = x W^T, and the gradient of y.
enum class Operand : uint8_t { kInput, kWeight, kOutputGrad };
inline constexpr int kOperands = 3;

struct Delayed {
  int64_t entries = 0;                // Of each row.
  std::vector<std::string> products;  // Rows of the history: a product's operands, one behind the other.
  bool newest = false;                // The newest entry counts, not the greatest of all.
  float margin = 1;                   // Times that.

  engine::Shape history() const { return {static_cast<int64_t>(products.size()) * kOperands, entries}; }
};

class Fp8Scales {
 public:
  enum class Recipe : uint8_t { kCurrent, kBlocks };
  explicit Fp8Scales(engine::Program& program, Recipe recipe = Recipe::kCurrent)
      : program_(program), blocks_(recipe == Recipe::kBlocks) {}
  // Delayed. `history`: f32, delayed.history(), read by what is recorded here. `observes`: of a step, which calls
  // push().
  Fp8Scales(engine::Program& program, const Delayed& delayed, engine::Tensor history, bool observes);

  bool are_delayed() const { return history_.defined(); }
  bool are_in_blocks() const { return blocks_; }
  // Whether a tensor's greatest magnitude is looked for in each step, so that it helps who writes it finds it.
  bool are_current() const { return !are_delayed() && !are_in_blocks(); }
  // f32 [1]: what to quantise x by; undefined with blocks. `name`: of the tensor x; `found`: its greatest magnitude,
  // where somebody has it.
  engine::Tensor amax(const std::string& name, const std::string& product, Operand operand, engine::Tensor x,
                      engine::Tensor found = {}) const;
  // `amax`: what amax() gave, of x or, where ranks scale alike, of more. `again`: the same values were quantised
  // before.
  Quantized quantize(const std::string& name, const std::string& product, Operand operand, engine::Tensor x,
                     engine::Tensor amax, engine::DType dtype, Copies copies, bool again = false) const;
  // f32 [1]: what amax() is told to be known, and who quantises tells what it saw; undefined if nobody does.
  engine::Tensor known(const std::string& product, Operand operand) const { return entry(known_, product, operand); }
  engine::Tensor seen(const std::string& product, Operand operand) const { return entry(seen_, product, operand); }
  // f32 [rows]: of all this rank's tensors, what was seen. Undefined if nobody wants to know.
  engine::Tensor all_seen() const { return seen_; }
  // Behind the last op that quantises, and what makes all_seen() the ranks' greatest.
  void push() const;

 private:
  engine::Tensor entry(engine::Tensor of_all, const std::string& product, Operand operand) const;

  engine::Program& program_;
  bool blocks_ = false;
  engine::Tensor history_, known_, seen_;
  std::unordered_map<std::string, int64_t> rows_;  // Of a product's first operand.
};

}  // namespace telar::parallel
