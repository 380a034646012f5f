#include "worker/parallel/quantized.h"

namespace telar::parallel {

using backend::Kernels;
using engine::DType;
using engine::MemoryClass;
using engine::Tensor;

Tensor amax_tensor(engine::Program& program, const std::string& name) {
  return program.transient(name + ".amax", DType::kF32, {1}, MemoryClass::kActivations);
}

Quantized record_quantize(engine::Program& program, const std::string& name, Tensor x, const Scaling& scaling,
                          DType dtype, Copies copies, MemoryClass memory_class) {
  const int64_t rows = x.shape().rows(), columns = x.shape().cols();
  Quantized q;
  if (copies != Copies::kColumns) q.rows = program.transient(name + ".fp8", dtype, {rows, columns}, memory_class);
  if (copies != Copies::kRows) {
    q.columns = program.transient(name + ".fp8.transposed", dtype, {columns, rows}, memory_class);
  }
  q.inverse_scale = program.transient(name + ".inverse", DType::kF32, {1}, memory_class);
  program.record(name + ".quantize", &Kernels::quantize, x.in(), scaling.amax.in(), q.rows.out(), q.columns.out(),
                 q.inverse_scale.out(), scaling.seen.inout());
  return q;
}

}  // namespace telar::parallel
