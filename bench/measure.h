// One op of a recorded program, alone on a device, again and again.
//
// Its arguments hold random values and exist as often as it takes to fill `cold_bytes`, so that none is still in a
// cache when its turn comes again. Times are the device's own, from events around a batch of calls.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/program.h"

namespace telar::bench {

struct MeasureOptions {
  uint64_t cold_bytes = uint64_t{256} << 20;
  double batch_seconds = 0.01;  // Least length of a batch of calls.
  int repeats = 9;              // Batches.
  int32_t ids_below = 1;        // Token ids of i32 arguments.
};

struct Measured {
  double seconds = 0;  // Of one call, the median over the batches.
  double fastest = 0, slowest = 0;
  // The host took as long to issue a batch as the device to run it: the kernels may be faster than `seconds`.
  bool host_bound = false;
  std::vector<backend::KernelLaunch> launches;
  std::string launches_problem;  // Why they are not known.
};

// `op` is one of `program`'s; it must not be a collective. `stream` is a compute stream of `device`.
absl::StatusOr<Measured> measure(const engine::Program& program, const engine::Op& op, backend::Device& device,
                                 backend::Stream& stream, const MeasureOptions& options);

// The same arguments, a single call behind a warm-up: for profilers that repeat kernels themselves.
absl::Status call_once(const engine::Program& program, const engine::Op& op, backend::Device& device,
                       backend::Stream& stream, const MeasureOptions& options);

}  // namespace telar::bench
