// The algorithms that cuBLASLt has for a product: those its heuristic proposes, eight at the most, and those beside
// them that it runs but does not propose.
#pragma once

#include <cublasLt.h>

#include <vector>

namespace telar::backend::cuda {

inline constexpr size_t kProductWorkspaceBytes = size_t{32} << 20;  // What NVIDIA advises for Hopper.

// A product as cuBLASLt has it described. The pieces belong to whoever made them.
struct ProductDescription {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  int a_alignment = 256, b_alignment = 256, d_alignment = 256;  // Bytes.
  bool in_blocks = false;                                       // Operands have a scale for each 128 terms.
};

// In the heuristic's order. Empty: none, whatever the reason. Never with partial sums in the type of the result, which
// would round them.
std::vector<cublasLtMatmulAlgo_t> proposed_algorithms(cublasLtHandle_t handle, const ProductDescription& product);

// Those that differ from `from` in one of tile, cluster, rasterization, stages and custom option, which take turns, and
// that the product may use with kProductWorkspaceBytes. None for operands that are not aligned to 16 bytes, and none
// for scales in blocks: there a changed one may pass cuBLASLt's check and give half of the result wrong (CUDA 13.0,
// H200).
std::vector<cublasLtMatmulAlgo_t> neighbours(cublasLtHandle_t handle, const ProductDescription& product,
                                             const cublasLtMatmulAlgo_t& from);

bool is_usable(cublasLtHandle_t handle, const ProductDescription& product, const cublasLtMatmulAlgo_t& algorithm);

}  // namespace telar::backend::cuda
