// A tensor in FP8: what Kernels::quantize and quantize_blocks make, and how programs record them.
#pragma once

#include <string>

#include "worker/engine/program.h"

namespace telar::parallel {

// Products sum along rows of both operands, so a tensor that takes part in several is there as it is and transposed.
enum class Copies : uint8_t { kRows, kColumns, kBoth };

struct Quantized {
  engine::Tensor rows, rows_inverse;        // As x, and its inverse scales (see fp8.h). Undefined if not asked for.
  engine::Tensor columns, columns_inverse;  // The same of x's columns as rows.
};

// f32 [1], of the tensor `name`; for whoever finds its greatest magnitude.
engine::Tensor amax_tensor(engine::Program& program, const std::string& name);
// What quantising is told: see Kernels::quantize.
struct Scaling {
  engine::Tensor amax, seen;  // f32 [1]; seen: undefined if nobody wants to know.
};
Quantized record_quantize(engine::Program& program, const std::string& name, engine::Tensor x, const Scaling& scaling,
                          engine::DType dtype, Copies copies, engine::MemoryClass memory_class);
// See Kernels::quantize_blocks.
Quantized record_quantize_blocks(engine::Program& program, const std::string& name, engine::Tensor x, bool square,
                                 engine::DType dtype, Copies copies, engine::MemoryClass memory_class);

}  // namespace telar::parallel
