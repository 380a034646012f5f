// How fast two ranks reach each other, as a cluster file wants it (docs/formats/rates.md).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"
#include "worker/backend/device.h"

namespace telar::bench {

// The bytes that are tried, as far as `most` goes: 64 KiB, 1, 16, 64, 256 MiB, 1 GiB.
std::vector<uint64_t> link_sizes(uint64_t most);

// All members call it; `pair` has two. Points of every kind of call, alone on both devices; what else LinkRates has is
// left at its default. Takes 2 * `most` bytes of the device.
absl::StatusOr<v1::LinkRates> measure_links(backend::Device& device, backend::Communicator& pair, uint64_t most);

// All members call it; `group` has more than two. Seconds of a further round of a ring, from a small all_reduce of the
// group and one of the two of which `links` has the points; 0 where it has none.
absl::StatusOr<double> measure_latency(backend::Device& device, backend::Communicator& group,
                                       const v1::LinkRates& links);

// The greatest of all members' values.
absl::StatusOr<double> greatest_of(backend::Device& device, backend::Communicator& group, double value);

}  // namespace telar::bench
