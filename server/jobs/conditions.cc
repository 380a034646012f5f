#include "server/jobs/conditions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/cluster/times.h"

namespace telar::server::jobs {
namespace {
constexpr int kMostConditions = 50;
}

void set_condition(Draft& draft, const std::string& type, const std::string& subject, const std::string& message) {
  auto& conditions = *draft.job().mutable_conditions();
  const std::string text = absl::StrCat(subject, message);
  const auto known = std::find_if(conditions.begin(), conditions.end(), [&](const v1::Condition& one) {
    return one.type() == type && one.message().rfind(subject, 0) == 0;
  });
  if (known != conditions.end() && known->message() == text) return;
  if (known != conditions.end()) conditions.erase(known);
  v1::Condition* condition = conditions.Add();
  condition->set_type(type);
  condition->set_message(text);
  *condition->mutable_time() = cluster::to_timestamp(draft.now());
  while (conditions.size() > kMostConditions) conditions.erase(conditions.begin());
  draft.touch();
}

void set_condition(Draft& draft, const std::string& type, const std::string& message) {
  set_condition(draft, type, "", message);
}

void set_log_gap(Draft& draft, uint64_t epoch, uint32_t rank, const char* what, uint64_t bytes) {
  set_condition(draft, "LOG_GAP", absl::StrCat("rank ", rank, " epoch ", epoch, ": ", what),
                absl::StrCat(bytes, " bytes"));
}

bool has_condition(const v1::Job& job, const std::string& type) {
  return std::any_of(job.conditions().begin(), job.conditions().end(),
                     [&](const v1::Condition& one) { return one.type() == type; });
}

void clear_condition(Draft& draft, const std::string& type) {
  if (!has_condition(draft.job(), type)) return;
  auto& conditions = *draft.job().mutable_conditions();
  conditions.erase(std::remove_if(conditions.begin(), conditions.end(),
                                  [&](const v1::Condition& one) { return one.type() == type; }),
                   conditions.end());
  draft.touch();
}

}  // namespace telar::server::jobs
