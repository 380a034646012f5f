// How quantising kernels go over their tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace telar::backend::cuda {

enum class QuantizeVariant : uint8_t {
  kTiles,   // A block a tile.
  kNarrow,  // A block a tile of half the columns, where no block of 128 is scaled.
  kAhead,   // As many blocks as fit, each over several tiles with the next one's elements on their way.
};

// At every call, by the candidates quantize_ahead and, where that is not chosen, quantize_narrow: see candidates.h.
QuantizeVariant quantize_variant();

// Of kAhead: how many blocks of tile threads go over `tiles`, with so many bytes of shared memory each.
cudaError_t ahead_blocks(const void* kernel, size_t bytes, int64_t tiles, unsigned* blocks);

}  // namespace telar::backend::cuda
