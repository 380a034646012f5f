// A layout's time and memory by arithmetic, for a search that looks at thousands: what one layer and the model's ends
// take is recorded, the rest follows from how many of them a rank has and how its schedule goes. Formulas of waits and
// activations: docs/layouts.md and worker/parallel/schedule_generators.h; bytes of state: docs/layouts.md.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"
#include "worker/parallel/stages.h"

namespace telar::forecast {

struct Estimate {
  double seconds = 0;
  double bytes = 0;  // Of the fullest rank.
  // Of the seconds: what the pipeline waits, and what gradients and weights of replicas add.
  double pipeline = 0;
  double replicas = 0;
};

// What is recorded once for all layouts with the same tensor ranks, tokens a micro-batch and recomputation: seconds and
// bytes of one micro-batch; transfers of tensor parallelism are in them.
struct Unit {
  struct Part {
    double forward = 0, backward = 0;  // The latter with what it recomputes.
    double weight_grad = 0;            // Of the backward.
    double kept = 0;                   // Bytes between the two.
  };
  Part layer, ends;    // One layer; embedding and head.
  double working = 0;  // Bytes beside: one layer's backward, the head's logits, transfers.
};

class Estimator {
 public:
  // `cluster` complete.
  explicit Estimator(const v1::ClusterShape& cluster) : cluster_(cluster) {}

  // Of a resolved spec. INTERNAL: what was recorded could not be planned.
  absl::StatusOr<Estimate> estimate(const v1::JobSpec& resolved);

 private:
  using UnitKey = std::tuple<uint32_t, uint32_t, int, bool>;  // Tensor ranks, sequences, recompute, overlap.
  absl::StatusOr<Unit> unit(const v1::JobSpec& resolved);
  const std::vector<parallel::Stage>& stages(const v1::JobSpec& resolved);

  const v1::ClusterShape& cluster_;
  std::map<UnitKey, Unit> units_;
  std::map<uint32_t, std::vector<parallel::Stage>> stages_;  // By their number.
};

}  // namespace telar::forecast
