// Times launches on a stream against each other, for who has to choose between them.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

namespace telar::backend::cuda {

// Before each timed launch the L2 cache is filled with something else, as it is in a step: loops over the same operands
// rank small products differently. Not for a stream under capture.
class Tuner {
 public:
  using Launch = std::function<bool()>;  // Enqueues the work once; false: it cannot be.

  explicit Tuner(cudaStream_t stream);  // Without memory to fill the cache with, it is left alone.
  Tuner(const Tuner&) = delete;
  ~Tuner();

  // Milliseconds, infinity where the launch fails. Blocks. The first call of each launch also loads its kernel.
  double once(const Launch& launch);
  // The median of `rounds` over all launches in turn, as clocks drift while this runs.
  std::vector<double> compare(const std::vector<Launch>& launches, int rounds);

 private:
  struct Span {
    cudaEvent_t start = nullptr, stop = nullptr;
  };
  // Enqueues the launch between two events; false as above.
  bool time(const Span& span, const Launch& launch);
  static double elapsed(const Span& span);
  Span& span(size_t i);

  const cudaStream_t stream_;
  size_t cache_bytes_ = 0;
  void* cache_ = nullptr;
  std::vector<Span> spans_;
};

}  // namespace telar::backend::cuda
