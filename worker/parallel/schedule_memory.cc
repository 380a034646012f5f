#include "worker/parallel/schedule_memory.h"

namespace telar::parallel {

std::vector<ActivationPeak> peak_activations(const Schedule& schedule, const std::vector<ActivationBytes>& by_stage) {
  std::vector<ActivationPeak> peaks(schedule.ranks);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    int64_t alive = 0;
    for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
      const Action& action = schedule.actions[rank][i];
      const ActivationBytes& bytes = by_stage[action.stage];
      if (action.kind == ActionKind::kForward) {
        alive += bytes.until_input_grad + bytes.until_weight_grad;
        if (peaks[rank].entry < 0 || alive > peaks[rank].value) peaks[rank] = {alive, static_cast<int>(i)};
      }
      if (is_input_grad(action.kind)) alive -= bytes.until_input_grad;
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGrad) {
        alive -= bytes.until_weight_grad;
      }
    }
  }
  return peaks;
}

std::vector<ActivationPeak> peak_until_input_grad(const Schedule& schedule) {
  return peak_activations(schedule, std::vector<ActivationBytes>(schedule.stages, {1, 0}));
}

std::vector<ActivationPeak> peak_until_weight_grad(const Schedule& schedule) {
  return peak_activations(schedule, std::vector<ActivationBytes>(schedule.stages, {0, 1}));
}

}  // namespace telar::parallel
