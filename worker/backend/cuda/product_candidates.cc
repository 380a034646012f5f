#include "worker/backend/cuda/product_candidates.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace telar::backend::cuda {
namespace {

using Algorithm = cublasLtMatmulAlgo_t;

constexpr int kAsked = 32;        // The library answers with eight.
constexpr uint32_t kCustom = 12;  // Values of the custom option that are looked at.

// Those that Hopper's kernels use for large products, others being too small to feed its tensor cores.
constexpr uint32_t kTiles[] = {
    CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_MATMUL_TILE_256x128, CUBLASLT_MATMUL_TILE_128x128,
    CUBLASLT_MATMUL_TILE_128x192, CUBLASLT_MATMUL_TILE_192x128, CUBLASLT_MATMUL_TILE_256x192,
    CUBLASLT_MATMUL_TILE_192x256, CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_160x128,
    CUBLASLT_MATMUL_TILE_128x224, CUBLASLT_MATMUL_TILE_224x128, CUBLASLT_MATMUL_TILE_64x256,
    CUBLASLT_MATMUL_TILE_256x64,  CUBLASLT_MATMUL_TILE_256x160, CUBLASLT_MATMUL_TILE_160x256,
    CUBLASLT_MATMUL_TILE_128x320, CUBLASLT_MATMUL_TILE_320x128, CUBLASLT_MATMUL_TILE_64x192,
    CUBLASLT_MATMUL_TILE_192x64,  CUBLASLT_MATMUL_TILE_128x384, CUBLASLT_MATMUL_TILE_384x128};
constexpr uint16_t kClusters[] = {CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1,
                                  CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x2x1,
                                  CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_CLUSTER_SHAPE_1x4x1};

template <typename T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
}

template <typename T>
std::optional<T> capability(const Algorithm& algorithm, cublasLtMatmulAlgoCapAttributes_t attribute) {
  T value{};
  size_t written = 0;
  const auto status = cublasLtMatmulAlgoCapGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  if (status != CUBLAS_STATUS_SUCCESS || written != sizeof(value)) return std::nullopt;
  return value;
}

// A list of ids. Empty where there are none.
std::vector<uint32_t> capabilities(const Algorithm& algorithm, cublasLtMatmulAlgoCapAttributes_t attribute) {
  size_t bytes = 0;
  if (cublasLtMatmulAlgoCapGetAttribute(&algorithm, attribute, nullptr, 0, &bytes) != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<uint32_t> ids(bytes / sizeof(uint32_t));
  if (ids.empty()) return ids;
  size_t written = 0;
  const auto status = cublasLtMatmulAlgoCapGetAttribute(&algorithm, attribute, ids.data(), bytes, &written);
  if (status != CUBLAS_STATUS_SUCCESS) return {};
  ids.resize(std::min(ids.size(), written / sizeof(uint32_t)));
  return ids;
}

// `from` with one attribute changed; nothing where it has that value already or refuses it.
template <typename T>
std::optional<Algorithm> changed(const Algorithm& from, cublasLtMatmulAlgoConfigAttributes_t attribute, T value) {
  T before{};
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&from, attribute, &before, sizeof(before), &written) !=
          CUBLAS_STATUS_SUCCESS ||
      before == value) {
    return std::nullopt;
  }
  Algorithm to = from;
  if (cublasLtMatmulAlgoConfigSetAttribute(&to, attribute, &value, sizeof(value)) != CUBLAS_STATUS_SUCCESS) {
    return std::nullopt;
  }
  return to;
}

// The changes of one attribute, best guesses first.
class Changes {
 public:
  void add(const std::optional<Algorithm>& algorithm) {
    if (algorithm.has_value()) all_.push_back(*algorithm);
  }
  const Algorithm* next() { return at_ < all_.size() ? &all_[at_++] : nullptr; }

 private:
  std::vector<Algorithm> all_;
  size_t at_ = 0;
};

std::vector<Changes> changes_of(const Algorithm& from) {
  std::vector<Changes> kinds(5);
  const std::vector<uint32_t> tiles = capabilities(from, CUBLASLT_ALGO_CAP_TILE_IDS);
  for (uint32_t tile : kTiles) {
    if (std::find(tiles.begin(), tiles.end(), tile) == tiles.end()) continue;
    kinds[0].add(changed(from, CUBLASLT_ALGO_CONFIG_TILE_ID, tile));
  }
  for (uint16_t cluster : kClusters) kinds[1].add(changed(from, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster));
  if (capability<uint32_t>(from, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT).value_or(0) != 0) {
    for (uint32_t on : {0u, 1u}) kinds[2].add(changed(from, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, on));
  }
  for (uint32_t stages : capabilities(from, CUBLASLT_ALGO_CAP_STAGES_IDS)) {
    kinds[3].add(changed(from, CUBLASLT_ALGO_CONFIG_STAGES_ID, stages));
  }
  const int32_t custom = capability<int32_t>(from, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX).value_or(0);
  for (uint32_t value = 0; value < kCustom && static_cast<int32_t>(value) <= custom; ++value) {
    kinds[4].add(changed(from, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, value));
  }
  return kinds;
}

// An algorithm of the heuristic's suits the alignments that it was told; a changed one has to be asked.
bool suits(const ProductDescription& product, const Algorithm& algorithm) {
  const auto needs = [&](cublasLtMatmulAlgoCapAttributes_t attribute) {
    return capability<uint32_t>(algorithm, attribute).value_or(1);
  };
  return needs(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES) <= static_cast<uint32_t>(product.a_alignment) &&
         needs(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES) <= static_cast<uint32_t>(product.b_alignment) &&
         needs(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES) <= static_cast<uint32_t>(product.d_alignment) &&
         needs(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES) <= static_cast<uint32_t>(product.d_alignment);
}

// Which units multiply, and in what types.
std::optional<uint64_t> numerics(const Algorithm& algorithm) {
  return capability<uint64_t>(algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS);
}

}  // namespace

bool is_usable(cublasLtHandle_t handle, const ProductDescription& product, const Algorithm& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle, product.op, product.a, product.b, product.d, product.d, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kProductWorkspaceBytes;
}

std::vector<Algorithm> proposed_algorithms(cublasLtHandle_t handle, const ProductDescription& product) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return {};
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute, int bytes) {
    set(preference, attribute, static_cast<uint32_t>(bytes));
  };
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspaceBytes);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.a_alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.b_alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.d_alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.d_alignment);
  cublasLtMatmulHeuristicResult_t results[kAsked];
  int count = 0;
  if (cublasLtMatmulAlgoGetHeuristic(handle, product.op, product.a, product.b, product.d, product.d, preference, kAsked,
                                     results, &count) != CUBLAS_STATUS_SUCCESS) {
    count = 0;
  }
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<Algorithm> algorithms;
  for (int i = 0; i < count; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  return algorithms;
}

std::vector<Algorithm> neighbours(cublasLtHandle_t handle, const ProductDescription& product, const Algorithm& from) {
  std::vector<Algorithm> found;
  if (product.in_blocks || std::min({product.a_alignment, product.b_alignment, product.d_alignment}) < 16) return found;
  std::vector<Changes> kinds = changes_of(from);
  for (bool any = true; any;) {
    any = false;
    for (Changes& kind : kinds) {
      const Algorithm* const algorithm = kind.next();
      if (algorithm == nullptr) continue;
      any = true;
      if (suits(product, *algorithm) && numerics(*algorithm) == numerics(from) &&
          is_usable(handle, product, *algorithm)) {
        found.push_back(*algorithm);
      }
    }
  }
  return found;
}

}  // namespace telar::backend::cuda
