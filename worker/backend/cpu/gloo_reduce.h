// The arithmetic of reducing collectives: the same for every path, so that results do not depend on the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/backend/collectives.h"
#include "worker/backend/dtype.h"

namespace telar::backend::cpu {

// For the types of check_reducible(): out[i] = parts[0][i] op parts[1][i] op ..., taken in the order of `parts` for
// every i. f32 in f32; bf16 and f16 in f32 with one rounding at the end; i32 sums wrap. The maximum of anything with a
// NaN is a NaN. `out` may be one of `parts`.
void reduce_parts(ReduceOp op, DType dtype, std::span<const std::byte* const> parts, std::byte* out, int64_t elements);

}  // namespace telar::backend::cpu
