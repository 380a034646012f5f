#include "server/jobs/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace telar::server::jobs {
namespace {

// Negative: a device, of which what its process said is only the echo; 0: the cause itself; 1: interrupted, which
// breaks the communication of others; 2: a victim.
int blame(const Failure& failure) {
  if (failure.failure_class() == v1::DEVICE) return -1;
  if (failure.failure_class() == v1::COMMUNICATION) return 2;
  return failure.failure_class() == v1::FAILURE_CLASS_UNSPECIFIED ? 1 : 0;
}

Budget budget_of(v1::FailureClass failure_class) {
  if (failure_class == v1::FAILURE_CLASS_UNSPECIFIED) return Budget::kNone;
  const bool node = failure_class == v1::NODE_LOST || failure_class == v1::DEVICE;
  return node ? Budget::kNode : Budget::kOwn;
}

bool worth_a_retry(v1::FailureClass failure_class) {
  return failure_class != v1::CONFIG && failure_class != v1::DATA && failure_class != v1::OUT_OF_MEMORY;
}

std::string describe(const Failure& failure) {
  const std::string what = failure.failure_class() == v1::FAILURE_CLASS_UNSPECIFIED
                               ? "interrupted"
                               : v1::FailureClass_Name(failure.failure_class());
  return absl::StrCat("rank ", failure.rank(), " on node ", failure.node(), ": ", what,
                      failure.message().empty() ? "" : ": ", failure.message());
}

}  // namespace

Verdict judge(const JobRecord& record) {
  // Whoever is told to leave breaks the communication of the others; only what failed by itself counts beside it.
  if (!record.interruption().empty() && std::none_of(record.failures().begin(), record.failures().end(),
                                                     [](const Failure& failure) { return blame(failure) == 0; })) {
    return {.budget = Budget::kNone, .retry = true, .message = record.interruption()};
  }
  const auto cause = std::min_element(record.failures().begin(), record.failures().end(),
                                      [](const Failure& a, const Failure& b) { return blame(a) < blame(b); });
  Verdict verdict;
  verdict.failure_class = cause->failure_class();
  verdict.budget = budget_of(cause->failure_class());
  verdict.definite = blame(*cause) <= 0;
  verdict.message = describe(*cause);
  verdict.retry = worth_a_retry(cause->failure_class());

  const v1::Job& job = record.job();
  const v1::RestartSpec& limits = job.spec().restart();
  const bool spent = (verdict.budget == Budget::kOwn && job.restarts() >= limits.max_restarts()) ||
                     (verdict.budget == Budget::kNode && job.node_restarts() >= limits.max_node_restarts());
  if (verdict.retry && spent) {
    verdict.retry = false;
    const bool node = verdict.budget == Budget::kNode;
    absl::StrAppend(&verdict.message, "; no restart left (restart.", node ? "max_node_restarts" : "max_restarts", ": ",
                    node ? limits.max_node_restarts() : limits.max_restarts(), ")");
  }
  return verdict;
}

std::chrono::seconds backoff(uint32_t first, uint32_t restarts) {
  const uint32_t doublings = std::min(restarts == 0 ? 0 : restarts - 1, 5u);
  return std::chrono::seconds(static_cast<int64_t>(first) << doublings);
}

}  // namespace telar::server::jobs
