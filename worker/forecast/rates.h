// What a kind of device can do, as numbers: built in for those that we measured, or from a user's file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/forecast.pb.h"

namespace telar::forecast {

// Names of the built-in rates: "h200", "cpu".
std::vector<std::string> built_in_rates();
// NOT_FOUND names those that there are.
absl::StatusOr<v1::Rates> find_rates(const std::string& name);
// Of a device by what its driver calls it: "NVIDIA H200" is "h200". NOT_FOUND as above.
absl::StatusOr<v1::Rates> rates_of_model(const std::string& model);

// INVALID_ARGUMENT names the field that cannot be: not above zero, or points that do not ascend.
absl::Status check_rates(const v1::Rates& rates);

// Fills in defaults, and `rates` where only a name is given, and checks all.
absl::Status complete_cluster(v1::ClusterShape& cluster);

}  // namespace telar::forecast
