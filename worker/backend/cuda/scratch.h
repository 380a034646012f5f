// Device memory that vendor libraries and our stand-ins for them need while a call runs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::backend::cuda {

// One block a (stream, use), since streams run at once; made when first asked for and replaced by a larger one when
// that is not enough. A replaced block is kept, as captured graphs may hold its address: ask for the largest first.
// Threads: any.
class Scratch {
 public:
  enum Use { kProduct, kAttention };

  explicit Scratch(int device) : device_(device) {}
  Scratch(const Scratch&) = delete;
  ~Scratch();  // All streams are done.

  // At least `bytes`, aligned to 256, contents arbitrary, valid until the destructor. Work that uses it must be on
  // `stream`. RESOURCE_EXHAUSTED names bytes asked and free; FAILED_PRECONDITION: more is needed while `stream` is
  // being captured, where nothing can be allocated: make the same call once before.
  absl::StatusOr<std::byte*> get(cudaStream_t stream, Use use, size_t bytes);

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  const int device_;
  std::mutex mutex_;
  std::map<std::pair<cudaStream_t, Use>, Block> blocks_;  // Guarded by mutex_, as below.
  std::vector<std::byte*> replaced_;
};

// Whether work on `stream` is recorded into a graph rather than run.
bool is_capturing(cudaStream_t stream);

}  // namespace telar::backend::cuda
