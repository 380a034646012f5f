// Device memory that a call needs while it runs: partial sums and sorted ids of our kernels, workspaces of vendor
// libraries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::backend::cuda {

// One block a stream, as large as the largest need so far: calls on one stream follow each other, those of different
// streams do not. Blocks grow while a program runs for the first time, in units that make that rare, as the device
// stands still meanwhile; and never under capture, where nothing can be allocated. One whose address went into a graph
// stays where it is, and is kept beside a larger one.
// Threads: any, one a stream.
class Workspaces {
 public:
  static constexpr size_t kUnit = size_t{32} << 20;  // Blocks are multiples of it.

  Workspaces() = default;
  Workspaces(const Workspaces&) = delete;
  ~Workspaces();  // All streams are done.

  // At least `bytes`, aligned to 256, contents arbitrary; null for none at first. For work that is enqueued on `stream`
  // before the next call for it. The stream's device must be current. Errors name `op`: RESOURCE_EXHAUSTED the bytes
  // asked and free, FAILED_PRECONDITION: more is needed while `stream` is being captured; make the call once before.
  absl::StatusOr<std::byte*> get(const char* op, cudaStream_t stream, size_t bytes);
  size_t bytes() const;  // Held, over all streams.

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
    bool captured = false;  // A graph may hold its address.
  };
  absl::Status grow(const char* op, cudaStream_t stream, size_t bytes, Block& block);

  mutable std::mutex mutex_;
  std::map<cudaStream_t, Block> blocks_;  // Guarded by mutex_, as below.
  std::vector<Block> replaced_;
};

// Whether work on `stream` is recorded into a graph rather than run.
bool is_capturing(cudaStream_t stream);

}  // namespace telar::backend::cuda
