// Products by cuBLASLt: what a shape needs is prepared once, the algorithm chosen by measuring.
//
// The heuristic's candidates differ by up to 24 %, and others that it does not propose may be faster still. So the
// first call of a product of at least 2^30 multiply-adds times them on its operands, then neighbours of the fastest
// (see product_candidates.h), and keeps the best. Which one wins can differ between processes, and with it the last
// bits of results: TELAR_TUNING_FILE=<path> keeps choices (see tuning_file.h), TELAR_TUNING=0 or `deterministic` takes
// what the file has or the heuristic's first choice. A product first met under stream capture takes that too.
// TELAR_TUNING_MS: see tuner.h.
//
// A GELU is fused where that was measured to be faster than a kernel of its own and right to rounding, else apart, so
// never without tuning or a file; TELAR_GELU=fused and =apart overrule that.
//
// FP8 products are what the library has for them or UNIMPLEMENTED; all their pointers are aligned to 16 bytes.
//
// f32 products are true f32, no TF32. Split sums are reduced in f32. What cuBLASLt has no algorithm for (mixed types,
// some odd shapes of 16-bit types) goes to launch_product().
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/product.h"
#include "worker/backend/cuda/product_candidates.h"
#include "worker/backend/cuda/tuner.h"
#include "worker/backend/cuda/tuning_file.h"
#include "worker/backend/cuda/workspace.h"

namespace telar::backend::cuda {

class Products {
 public:
  // `workspaces` outlives it. The device must be current here and in every call.
  static absl::StatusOr<std::unique_ptr<Products>> create(int device, bool deterministic, Workspaces& workspaces);
  ~Products();
  // Enqueues on `stream`. Threads: any.
  absl::Status run(cudaStream_t stream, const Product& product);

 private:
  // What two products share that one plan serves.
  struct Key {
    int64_t m, n, k;
    bool transpose_a, transpose_b, accumulate, biased, gelu, fast;
    DType a_type, b_type, d_type, bias_type;  // The last counts if `biased`.
    Fp8Scaled a_scaled, b_scaled;
    int a_alignment, b_alignment, d_alignment;
    auto operator<=>(const Key&) const = default;
    std::string text() const;
  };
  struct Plan;
  enum class Gelu { kMeasured, kFused, kApart };

  Products(cublasLtHandle_t handle, Workspaces& workspaces);
  static Key key_of(const Product& product);
  absl::StatusOr<Plan*> plan_for(cudaStream_t stream, const Product& product);
  absl::Status choose(cudaStream_t stream, const Product& product, const Key& key, Plan& plan);
  absl::Status tune(cudaStream_t stream, const Product& product, const Key& key, Plan& plan,
                    const std::vector<cublasLtMatmulAlgo_t>& proposed);
  // See launch_gelu_deviation(), of the result that `launch` leaves. Blocks.
  static double gelu_deviation(cudaStream_t stream, const Product& product, const Tuner::Launch& launch);
  cublasStatus_t launch(cudaStream_t stream, const Product& product, const Plan& plan,
                        const cublasLtMatmulAlgo_t& algorithm, void* d, void* workspace) const;

  const cublasLtHandle_t handle_;
  Workspaces& workspaces_;
  bool tuning_ = true;
  Gelu gelu_ = Gelu::kMeasured;
  std::unique_ptr<TuningFile> file_;  // Null without TELAR_TUNING_FILE.
  std::mutex mutex_;                  // Guards the file and the plans, whose descriptors hold the pointers of a call.
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace telar::backend::cuda
