// One spec that stands for many jobs. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/errors.h"
#include "telar/v1/spec.pb.h"

namespace telar::server::jobs {

// Task `index` of an array: the spec with the parameters' values of that task, "-<index>" behind its name, and no
// parameters. `spec.array` is sound but for the fields and values themselves, whose mistakes are added to `found`.
v1::JobSpec task_of(const v1::JobSpec& spec, uint32_t index, std::vector<Violation>& found);

}  // namespace telar::server::jobs
