// What a device makes of products and transfers in a step, where power keeps its clock down and both share its units:
// the constants of docs/formats/rates.md that no single call shows.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"
#include "worker/backend/device.h"

namespace telar::bench {

struct StepRateOptions {
  int64_t rows = 8192, width = 4096;  // Of the products: [rows, width] by [width, width].
  double heat_seconds = 2;            // Of products before anything counts: clocks take their time to fall.
  double batch_seconds = 0.4;         // Of products a measurement.
  uint64_t transfer_bytes = uint64_t{64} << 20;
};

// sustained_flops and start_seconds: products of rows/8 to rows, whose times lie on a line. The rest is left at 0.
absl::StatusOr<v1::ProductRates> measure_products(backend::Device& device, const StepRateOptions& options);

struct BesideRates {
  double step_share = 0, slowdown = 0, send_slowdown = 0;  // As in v1::LinkRates.
  double waiting_power = 0;                                // As in v1::Rates.
};
// Both members of `pair` call it. The last two are known to rank 0 only.
absl::StatusOr<BesideRates> measure_beside(backend::Device& device, backend::Communicator& pair,
                                           const StepRateOptions& options);

}  // namespace telar::bench
