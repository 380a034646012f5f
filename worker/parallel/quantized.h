// A tensor in FP8: what Kernels::quantize makes, and how programs record it.
#pragma once

#include <string>

#include "worker/engine/program.h"

namespace telar::parallel {

// Products sum along rows of both operands, so a tensor that takes part in several is there as it is and transposed.
enum class Copies : uint8_t { kRows, kColumns, kBoth };

struct Quantized {
  engine::Tensor rows;           // As x. Undefined if not asked for; so are columns.
  engine::Tensor columns;        // x's columns as rows.
  engine::Tensor inverse_scale;  // f32 [1]
};

// f32 [1], of the tensor `name`; for whoever finds its greatest magnitude.
engine::Tensor amax_tensor(engine::Program& program, const std::string& name);
// What quantising is told: see Kernels::quantize.
struct Scaling {
  engine::Tensor amax, seen;  // f32 [1]; seen: undefined if nobody wants to know.
};
Quantized record_quantize(engine::Program& program, const std::string& name, engine::Tensor x, const Scaling& scaling,
                          engine::DType dtype, Copies copies, engine::MemoryClass memory_class);

}  // namespace telar::parallel
