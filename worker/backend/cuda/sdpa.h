// Causal attention in bf16 and f16 by cuDNN's fused kernels, on packed projections through strides.
#pragma once

#include <cudnn.h>

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/sdpa_graph.h"
#include "worker/backend/cuda/workspace.h"
#include "worker/backend/kernels.h"

namespace telar::backend::cuda {

// Tensors as in kernels.h, all bf16 or all f16 but lse, and aligned to 16 bytes.
// Plans are made once a shape, a third of a second each, and scratch grows then: not under stream capture, where a
// first call is FAILED_PRECONDITION. The backward sums dq with f32 atomics, so that the last bits of dq can differ from
// run to run, unless `deterministic`. Its scratch is 4 (D + 1) bytes a query head and token, and 4 D more with grouped
// heads. Deterministic, cuDNN keeps the gradients of all scores, 2 S bytes a query head and token, instead of the 4 D
// of dq: the batch is then taken in parts whose scores need at most kScoreBytes, or one by one.
// Documents are kept apart within the fused kernel, by comparing each key's place with `starts`; where cuDNN has no
// kernel for that, by a matrix of 2 S^2 bytes a sequence that is added to the scores, in parts of at most kScoreBytes.
// Not as ragged sequences of their own: a plan would have to be made for the most documents that a batch may have, with
// statistics and sums as long as the longest for each of them.
// Threads: any.
class Sdpa {
 public:
  // `workspaces` outlives it. The device must be current here and in every call.
  static constexpr int64_t kScoreBytes = int64_t{1} << 30;

  static absl::StatusOr<std::unique_ptr<Sdpa>> create(bool deterministic, Workspaces& workspaces);
  ~Sdpa();

  // Whether it may be asked; cuDNN can still refuse (UNIMPLEMENTED, nothing was enqueued).
  static bool takes(const AttentionDims& dims, DType dtype);
  // starts: as in kernels.h; may be null.
  absl::Status forward(cudaStream_t stream, const AttentionDims& dims, In qkv, const int32_t* starts, Out o, Out lse);
  absl::Status backward(cudaStream_t stream, const AttentionDims& dims, In qkv, const int32_t* starts, In o, In lse,
                        In d_o, Out dqkv);

 private:
  // How a graph keeps documents apart.
  enum class Borders : uint8_t { kNone, kStarts, kBias };
  struct Variant {
    bool backward = false;
    Borders borders = Borders::kNone;
    auto operator<=>(const Variant&) const = default;
  };
  // Null: cuDNN has no kernel.
  using Plan = std::unique_ptr<SdpaGraph>;
  using Key = std::tuple<DType, int64_t, int64_t, int64_t, int64_t, int64_t, Variant>;
  // One call on a part of the batch: `dims.batch` sequences from `first` on.
  struct Part {
    const SdpaGraph* plan = nullptr;
    Borders borders = Borders::kNone;
    AttentionDims dims;
    int64_t first = 0;
    int64_t token() const { return first * dims.sequence; }
  };

  Sdpa(cudnnHandle_t handle, bool deterministic, Workspaces& workspaces)
      : handle_(handle), deterministic_(deterministic), workspaces_(workspaces) {}
  // How many sequences of the batch are taken at once.
  int64_t part_of(const AttentionDims& dims, Variant variant) const;
  // All plans before anything is enqueued.
  absl::StatusOr<std::vector<Part>> parts_of(cudaStream_t stream, const AttentionDims& dims, DType dtype, bool backward,
                                             const int32_t* starts);
  absl::StatusOr<std::vector<Part>> parts_of(cudaStream_t stream, const AttentionDims& dims, DType dtype,
                                             Variant variant);
  absl::Status forward_part(cudaStream_t stream, const Part& part, In qkv, const int32_t* starts, Out o, Out lse);
  absl::Status backward_part(cudaStream_t stream, const Part& part, In qkv, const int32_t* starts, In o, In lse, In d_o,
                             Out dqkv);
  absl::StatusOr<SdpaGraph*> plan_for(cudaStream_t stream, const AttentionDims& dims, DType dtype, Variant variant);

  const cudnnHandle_t handle_;
  const bool deterministic_;
  Workspaces& workspaces_;
  std::mutex mutex_;  // One handle serves all streams, one call at a time.
  std::map<Key, Plan> plans_;
};

}  // namespace telar::backend::cuda
