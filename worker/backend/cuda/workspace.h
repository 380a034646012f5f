// Device memory that our kernels keep partial sums and sorted ids in between the launches of one call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "absl/status/statusor.h"

namespace telar::backend::cuda {

// One block a stream, of fixed size, so that its address can be captured in a graph. Made at the stream's first use,
// which therefore comes before any capture of that stream.
// Threads: any.
class Workspaces {
 public:
  // Sums over rows leave 17 MiB at most, rows of a loss 8 bytes each, ids to sort some 24 bytes each.
  static constexpr size_t kBytes = size_t{32} << 20;

  Workspaces() = default;
  Workspaces(const Workspaces&) = delete;
  ~Workspaces();  // All streams are done.

  // `bytes` aligned to 256, contents arbitrary, for work on `stream` until the next call for it.
  // RESOURCE_EXHAUSTED: more than kBytes (named), or the device has no memory left; FAILED_PRECONDITION: first use of a
  // stream that is being captured.
  absl::StatusOr<std::byte*> get(const char* op, cudaStream_t stream, size_t bytes);

 private:
  std::mutex mutex_;
  std::map<cudaStream_t, std::byte*> blocks_;  // Guarded by mutex_.
};

}  // namespace telar::backend::cuda
