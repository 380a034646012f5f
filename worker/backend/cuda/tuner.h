// Times launches on a stream against each other, for who has to choose between them.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

namespace telar::backend::cuda {

// Not for a stream under capture.
class Tuner {
 public:
  // Of one contender in a round. Short turns rank by the clock that the chip has just then; turns of some hundred
  // milliseconds by the one that its power limit leaves in a long run, where who spends less energy is faster.
  // TELAR_TUNING_MS sets it.
  static double turn_ms();
  using Launch = std::function<bool()>;  // Enqueues the work once; false: it cannot be.
  struct Contender {
    Launch launch;
    double ms = 0;  // That once() found.
  };

  explicit Tuner(cudaStream_t stream);  // Without memory to fill the L2 cache with, it is left alone.
  Tuner(const Tuner&) = delete;
  ~Tuner();

  size_t cache_bytes() const { return cache_bytes_; }
  // Milliseconds, infinity where the launch fails. Blocks. The first call of each launch also loads its kernel. The L2
  // cache is filled with something else before, as it is in a step: loops over the same operands rank small products
  // differently.
  double once(const Launch& launch);
  // Milliseconds a call, the median of `rounds` in each of which every contender runs for turn_ms(), at least twice:
  // in a step the chip is hot and its power limited, and who needs less of it runs faster. The order changes from round
  // to round, as clocks drift. `cold`: the cache is filled before each call; else the calls follow each other.
  std::vector<double> compare(const std::vector<Contender>& contenders, int rounds, bool cold);

 private:
  struct Span {
    cudaEvent_t start = nullptr, stop = nullptr;
  };
  // Enqueues the launch `calls` times between two events; false as above.
  bool time(const Span& span, const Launch& launch, int calls);
  void fill_cache();
  static double elapsed(const Span& span);
  Span& span(size_t i);

  const cudaStream_t stream_;
  size_t cache_bytes_ = 0;
  void* cache_ = nullptr;
  std::vector<Span> spans_;
};

}  // namespace telar::backend::cuda
