// What is worth knowing of a job beside its state.
#pragma once

#include <string>

#include "server/jobs/draft.h"

namespace telar::server::jobs {

// Says it once: a condition of that type whose message begins with `subject` is replaced. Of many the newest stay.
void set_condition(Draft& draft, const std::string& type, const std::string& subject, const std::string& message);

}  // namespace telar::server::jobs
