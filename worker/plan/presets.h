// Published model sizes by name. Only what distinguishes them; resolve() fills in the rest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "telar/v1/spec.pb.h"

namespace telar::plan {

std::optional<v1::ModelSpec> find_preset(const std::string& name);
std::vector<std::string> preset_names();
// The name with the smallest edit distance, for "did you mean".
std::string nearest_preset(const std::string& name);

}  // namespace telar::plan
