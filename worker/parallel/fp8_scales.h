// What the FP8 tensors of a program are scaled by.
//
// Current: a tensor's greatest magnitude is looked for before it is quantised. Delayed: it is known before, from those
// that the tensor of the same place had in earlier steps, which the run keeps: a row of the history for each, the
// newest first. What a step's tensors have is seen in passing when they are quantised, over all micro-batches and, as
// one reduction, all ranks; so all ranks have the history of all tensors, alike. Where it knows nothing yet, as in a
// run's first step, the magnitude is looked for as in `current`.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "worker/engine/program.h"

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
  // Current.
  explicit Fp8Scales(engine::Program& program) : program_(program) {}
  // Delayed. `history`: f32, delayed.history(), read by what is recorded here. `observes`: of a step, which calls
  // push().
  Fp8Scales(engine::Program& program, const Delayed& delayed, engine::Tensor history, bool observes);

  // Nobody looks for what is in a tensor but who quantises it.
  bool are_delayed() const { return history_.defined(); }
  // f32 [1]: what to quantise x by. `name`: of the tensor x; `found`: its greatest magnitude, where somebody has it.
  engine::Tensor amax(const std::string& name, const std::string& product, Operand operand, engine::Tensor x,
                      engine::Tensor found = {}) const;
  // f32 [1], undefined if nobody wants to know: see Kernels::quantize.
  engine::Tensor seen(const std::string& product, Operand operand) const { return entry(seen_, product, operand); }
  // f32 [rows]: of all this rank's tensors, what was seen. Undefined if nobody wants to know.
  engine::Tensor all_seen() const { return seen_; }
  // Behind the last op that quantises, and what makes all_seen() the ranks' greatest.
  void push() const;

 private:
  engine::Tensor entry(engine::Tensor of_all, const std::string& product, Operand operand) const;

  engine::Program& program_;
  engine::Tensor history_, known_, seen_;
  std::unordered_map<std::string, int64_t> rows_;  // Of a product's first operand.
};

}  // namespace telar::parallel
