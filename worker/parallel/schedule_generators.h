// The well-known pipeline schedules, as compute-only lists.
//
// F, I and W are the times of a stage's parts and B = I + W; p ranks, v stages a rank (each 1/v of a rank's layers), m
// micro-batches, rank r from 0. Idle is over the makespan, own idle from a rank's first action to its last; both
// without link times.
//
// | name        | idle            | stage activations alive on rank r       | source                  |
// |-------------|-----------------|-----------------------------------------|-------------------------|
// | gpipe       | (p-1)(F+B)/v    | mv                                      | Huang et al. 2019       |
// | 1f1b        | (p-1)(F+B)      | min(m, p-r)                             | Narayanan et al. 2021   |
// | interleaved | (p-1)(F+B)/v    | min(mv, (v-1)N + 2(p-1-r) + 1)          | Narayanan et al. 2021   |
// | zb-h1       | own (p-1)(F+I-W)| min(m, p) until W, min(m, p-r) until I  | Qi et al., 2401.10241   |
// | zb-v        | own 0, F = I = W| 2p                                      | Qi et al., 2405.15362   |
//
// Idle holds from m = p on, for zb-v from m = 2p-1; that of zb-h1 is rank 0's. Peaks hold for every m, for zb-v as a
// bound below m = 2p-1. All this is tested.
//
// In all of them every stage's backwards run in the order of the micro-batches, so gradients are summed as without a
// pipeline.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "worker/parallel/schedule.h"

namespace telar::parallel {

// `name` is gpipe, 1f1b, interleaved, zb-h1 or zb-v. 1f1b and zb-h1 take 1 stage a rank, zb-v takes 2, gpipe and
// interleaved any number. Any number of ranks and micro-batches works, fewer micro-batches than ranks or stages
// included: the pipeline is then just not full.
//
// Stage s is on rank s % ranks; for zb-v stages s and 2 * ranks - 1 - s are on rank s.
//
// INVALID_ARGUMENT says the arithmetic of what does not work.
absl::StatusOr<Schedule> make_schedule(std::string_view name, int ranks, int virtual_stages, int micro_batches);

// N, the micro-batches that interleaved passes through one stage of a rank before it goes on to the next: the least
// N >= p for which m mod N is 0 or at least p, so that no group is too small to fill the pipeline (Megatron-LM's rule);
// m where m < p. Where m is a multiple of floor(m / p) this is m / floor(m / p), PyTorch's choice.
int interleaved_group(int ranks, int micro_batches);

}  // namespace telar::parallel
