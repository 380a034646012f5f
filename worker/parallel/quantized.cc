#include "worker/parallel/quantized.h"

#include "worker/backend/fp8.h"

namespace telar::parallel {

using backend::Kernels;
using engine::DType;
using engine::MemoryClass;
using engine::Tensor;

Tensor amax_tensor(engine::Program& program, const std::string& name) {
  return program.transient(name + ".amax", DType::kF32, {1}, MemoryClass::kActivations);
}

namespace {

// The copies alone.
Quantized copies_of(engine::Program& program, const std::string& name, Tensor x, DType dtype, Copies copies,
                    MemoryClass memory_class) {
  const int64_t rows = x.shape().rows(), columns = x.shape().cols();
  Quantized q;
  if (copies != Copies::kColumns) q.rows = program.transient(name + ".fp8", dtype, {rows, columns}, memory_class);
  if (copies != Copies::kRows) {
    q.columns = program.transient(name + ".fp8.transposed", dtype, {columns, rows}, memory_class);
  }
  return q;
}

}  // namespace

Quantized record_quantize(engine::Program& program, const std::string& name, Tensor x, const Scaling& scaling,
                          DType dtype, Copies copies, MemoryClass memory_class) {
  Quantized q = copies_of(program, name, x, dtype, copies, memory_class);
  const Tensor inverse = program.transient(name + ".inverse", DType::kF32, {1}, memory_class);
  if (q.rows.defined()) q.rows_inverse = inverse;
  if (q.columns.defined()) q.columns_inverse = inverse;
  program.record(name + ".quantize", &Kernels::quantize, x.in(), scaling.amax.in(), q.rows.out(), q.columns.out(),
                 inverse.out(), scaling.seen.inout());
  return q;
}

Quantized record_quantize_blocks(engine::Program& program, const std::string& name, Tensor x, bool square, DType dtype,
                                 Copies copies, MemoryClass memory_class) {
  Quantized q = copies_of(program, name, x, dtype, copies, memory_class);
  const auto inverse_of = [&](const Tensor& copy, const char* suffix) {
    if (!copy.defined()) return Tensor();
    const backend::Fp8Scaled scaled = square ? backend::Fp8Scaled::kSquares : backend::Fp8Scaled::kRuns;
    return program.transient(name + suffix, DType::kF32,
                             backend::fp8_inverse_shape(scaled, copy.shape()[0], copy.shape()[1]), memory_class);
  };
  q.rows_inverse = inverse_of(q.rows, ".inverse");
  q.columns_inverse = inverse_of(q.columns, ".inverse.transposed");
  program.record(name + ".quantize", &Kernels::quantize_blocks, x.in(), square, q.rows.out(), q.rows_inverse.out(),
                 q.columns.out(), q.columns_inverse.out());
  return q;
}

}  // namespace telar::parallel
