#include "server/jobs/array.h"

#include "absl/strings/str_cat.h"
#include "client/spec/reader.h"

namespace telar::server::jobs {

v1::JobSpec task_of(const v1::JobSpec& spec, uint32_t index, std::vector<Violation>& found) {
  v1::JobSpec task = spec;
  task.set_name(absl::StrCat(spec.name(), "-", index));
  task.mutable_array()->clear_parameters();
  for (int i = 0; i < spec.array().parameters_size(); ++i) {
    const v1::ArrayParameter& parameter = spec.array().parameters(i);
    const std::string& value = parameter.values(static_cast<int>(index));
    for (const client::Problem& problem : client::set_field(absl::StrCat(parameter.field(), "=", value), task)) {
      found.push_back({absl::StrCat("spec.array.parameters[", i, "].values[", index, "]"),
                       absl::StrCat(problem.field, problem.field.empty() ? "" : ": ", problem.text)});
    }
  }
  return task;
}

}  // namespace telar::server::jobs
