// What is worth knowing of a job beside its state.
#pragma once

#include <string>

#include "server/jobs/draft.h"

namespace telar::server::jobs {

// Says it once: a condition of that type whose message begins with `subject` is replaced. Of many the newest stay.
void set_condition(Draft& draft, const std::string& type, const std::string& subject, const std::string& message);
// The one of that type, of which there is one at most.
void set_condition(Draft& draft, const std::string& type, const std::string& message);
// Bytes of a rank's log that nobody has, all in all; `what` became of them.
void set_log_gap(Draft& draft, uint64_t epoch, uint32_t rank, const char* what, uint64_t bytes);
bool has_condition(const v1::Job& job, const std::string& type);
// All of that type go.
void clear_condition(Draft& draft, const std::string& type);

}  // namespace telar::server::jobs
