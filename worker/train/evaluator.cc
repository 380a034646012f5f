#include "worker/train/evaluator.h"

#include <algorithm>
#include <vector>

#include "worker/train/failure.h"

namespace telar::train {

absl::StatusOr<EvalResult> evaluate(Replica& replica, const data::Sampler& sampler, const std::atomic<bool>& stop) {
  const plan::RunShape& shape = replica.shape();
  const uint64_t micro = shape.spec.batch().micro(), length = shape.spec.batch().sequence_length();
  const uint64_t replicas = static_cast<uint64_t>(shape.mesh.dp_size);
  const uint64_t samples = std::min<uint64_t>(shape.spec.eval().sequences(), sampler.windows());
  std::vector<int32_t> inputs(micro * length), targets(micro * length);
  double loss = 0, valid = 0;
  for (uint64_t first = 0; first < samples; first += micro * replicas) {
    if (first > 0 && replica.asked_to_stop()) return EvalResult{.stopped = true};
    // Windows beyond the end are filled up with targets that do not count.
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), -1);
    for (uint64_t i = 0; i < micro; ++i) {
      const uint64_t sample = first + static_cast<uint64_t>(shape.mesh.dp) * micro + i;
      if (sample >= samples) break;
      const absl::Status status = sampler.read(sample, std::span(inputs).subspan(i * length, length),
                                               std::span(targets).subspan(i * length, length));
      if (!status.ok()) return with_class(v1::DATA, status);
    }
    const auto part = replica.eval_batch(inputs, targets, stop.load());
    if (!part.ok()) return part.status();
    loss += part->first;
    valid += part->second;
  }
  return EvalResult{valid > 0 ? loss / valid : 0, static_cast<uint64_t>(valid)};
}

}  // namespace telar::train
