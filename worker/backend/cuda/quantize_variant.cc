#include "worker/backend/cuda/quantize_variant.h"

#include "worker/backend/cuda/candidates.h"
#include "worker/backend/cuda/occupancy.h"

namespace telar::backend::cuda {
namespace {

constexpr int kThreadsOfTile = 256;

}  // namespace

QuantizeVariant quantize_variant() {
  if (is_candidate("quantize_ahead")) return QuantizeVariant::kAhead;
  return is_candidate("quantize_narrow") ? QuantizeVariant::kNarrow : QuantizeVariant::kTiles;
}

cudaError_t ahead_blocks(const void* kernel, size_t bytes, int64_t tiles, unsigned* blocks) {
  if (const cudaError_t error = allow_shared(kernel, bytes); error != cudaSuccess) return error;
  int resident = 0;
  const cudaError_t error = resident_blocks(kernel, kThreadsOfTile, bytes, &resident);
  if (error != cudaSuccess) return error;
  const int64_t rounds = (tiles + resident - 1) / resident;  // As evenly as so many blocks can.
  *blocks = static_cast<unsigned>((tiles + rounds - 1) / rounds);
  return cudaSuccess;
}

}  // namespace telar::backend::cuda
