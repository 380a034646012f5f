// How much of the forward a schedule keeps alive on each rank.
//
// What F leaves behind lives until the stage's input gradient is made (I or B), or until its weight gradients are (W or
// B): the inputs of the stage's matrix products are of the second kind, the rest of the first.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/parallel/schedule.h"

namespace telar::parallel {

// What one micro-batch leaves behind in one stage.
struct ActivationBytes {
  int64_t until_input_grad = 0;
  int64_t until_weight_grad = 0;
};

struct ActivationPeak {
  int64_t value = 0;
  int entry = -1;  // Of the forward that reaches it first; -1: the rank has none.
};

// The most that is alive at once, by rank. `by_stage` has an element for each stage.
std::vector<ActivationPeak> peak_activations(const Schedule& schedule, const std::vector<ActivationBytes>& by_stage);

// The same in stage activations (with v stages a rank each is 1/v of the rank's layers).
std::vector<ActivationPeak> peak_until_input_grad(const Schedule& schedule);
std::vector<ActivationPeak> peak_until_weight_grad(const Schedule& schedule);

}  // namespace telar::parallel
