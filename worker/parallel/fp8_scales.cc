#include "worker/parallel/fp8_scales.h"

namespace telar::parallel {

using backend::Kernels;
using engine::DType;
using engine::MemoryClass;
using engine::Tensor;

Fp8Scales::Fp8Scales(engine::Program& program, const Delayed& delayed, Tensor history, bool observes)
    : program_(program), history_(history) {
  int64_t row = 0;
  for (const std::string& product : delayed.products) {
    rows_[product] = row;
    row += kOperands;
  }
  known_ = program.transient("fp8.known", DType::kF32, {row}, MemoryClass::kWorkspace);
  program.record("fp8.known", &Kernels::history_amax, history.in(), delayed.newest, delayed.margin, known_.out());
  if (!observes) return;
  seen_ = program.transient("fp8.seen", DType::kF32, {row}, MemoryClass::kWorkspace);
  program.record("fp8.seen.zero", &Kernels::fill, 0.0f, seen_.out());
}

Tensor Fp8Scales::entry(Tensor of_all, const std::string& product, Operand operand) const {
  return of_all.defined() ? of_all.slice(rows_.at(product) + static_cast<int64_t>(operand), {1}) : Tensor();
}

Tensor Fp8Scales::amax(const std::string& name, const std::string& product, Operand operand, Tensor x,
                       Tensor found) const {
  if (found.defined() || are_in_blocks()) return found;
  const Tensor amax = amax_tensor(program_, name);
  program_.record(name + ".amax", &Kernels::amax, x.in(), known(product, operand).in(), amax.out());
  return amax;
}

Quantized Fp8Scales::quantize(const std::string& name, const std::string& product, Operand operand, Tensor x,
                              Tensor amax, DType dtype, Copies copies, bool again) const {
  const bool is_weight = operand == Operand::kWeight;
  const MemoryClass memory_class = is_weight ? MemoryClass::kWeights : MemoryClass::kActivations;
  if (are_in_blocks()) return record_quantize_blocks(program_, name, x, is_weight, dtype, copies, memory_class);
  const Tensor seen = again ? Tensor() : this->seen(product, operand);
  return record_quantize(program_, name, x, {amax, seen}, dtype, copies, memory_class);
}

void Fp8Scales::push() const { program_.record("fp8.history", &Kernels::push_history, seen_.in(), history_.inout()); }

}  // namespace telar::parallel
