// Where a rank's first weights come from: a checkpoint of ours, or other people's weights (worker/convert).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/checkpoint/manifest.h"
#include "worker/parallel/parameter.h"

namespace telar::checkpoint {

// Immutable; any number of threads may read.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const std::string& path() const = 0;
  // The elements of boxes of a logical tensor as f32: each box row-major, one behind the other. Reads no more than it
  // must, through bounded buffers. NOT_FOUND for a name and kind that is not there, INVALID_ARGUMENT for boxes outside
  // the tensor or an `out` of another size, FAILED_PRECONDITION for elements that are stored as something else than
  // kind demands, DATA_LOSS for damage. After an error the contents of `out` are unspecified.
  virtual absl::Status read_values(std::string_view name, TensorKind kind, std::span<const parallel::Box> boxes,
                                   std::span<float> out) const = 0;
};

}  // namespace telar::checkpoint
