#include "server/jobs/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/jobs/blame.h"

namespace telar::server::jobs {
namespace {

// Negative: a device, of which what its process said is only the echo; 0: the cause itself; 1: interrupted, which
// breaks the communication of others; 2: a victim.
int blame(const Failure& failure) {
  if (failure.failure_class() == v1::DEVICE) return -1;
  if (failure.failure_class() == v1::COMMUNICATION) return 2;
  return failure.failure_class() == v1::FAILURE_CLASS_UNSPECIFIED ? 1 : 0;
}

Budget budget_of(const Failure& failure) {
  switch (failure.failure_class()) {
    case v1::FAILURE_CLASS_UNSPECIFIED:
      return Budget::kNone;
    case v1::NODE_LOST:
    case v1::DEVICE:
    case v1::COMMUNICATION:  // Of nobody that died: the connection between them did.
      return Budget::kNode;
    case v1::HANG:
      return failure.of_node() ? Budget::kNode : Budget::kOwn;
    default:
      return Budget::kOwn;
  }
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
  verdict.budget = budget_of(*cause);
  verdict.node = cause->node();
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
  const uint32_t fruitless = limits.max_without_progress();
  if (verdict.retry && verdict.budget != Budget::kNone && fruitless > 0 && job.without_progress() >= fruitless &&
      !made_progress(record)) {
    verdict.retry = false;
    verdict.failure_class = v1::NO_PROGRESS;
    absl::StrAppend(&verdict.message, "; no progress: ", fruitless,
                    " restarts in a row brought no newer checkpoint and no step behind ", record.reached_step(),
                    " (restart.max_without_progress: ", fruitless, ")");
  }
  return verdict;
}

bool made_progress(const JobRecord& record) {
  if (record.job().progress().step() > record.reached_step()) return true;
  return record.has_commit() && record.commit_step() > record.reached_commit();
}

std::chrono::seconds count_restart(JobRecord& record, const Verdict& verdict) {
  v1::Job& job = *record.mutable_job();
  if (made_progress(record)) {
    job.set_without_progress(0);
  } else if (verdict.budget != Budget::kNone) {
    job.set_without_progress(job.without_progress() + 1);
  }
  record.set_reached_step(std::max(record.reached_step(), job.progress().step()));
  if (record.has_commit()) record.set_reached_commit(std::max(record.reached_commit(), record.commit_step()));
  add_blame(record, verdict.failure_class, verdict.node);
  const uint32_t first = job.spec().restart().backoff_seconds();
  switch (verdict.budget) {
    case Budget::kNone:
      break;
    case Budget::kOwn:
      job.set_restarts(job.restarts() + 1);
      return backoff(first, job.restarts());
    case Budget::kNode:
      job.set_node_restarts(job.node_restarts() + 1);
      if (job.without_progress() > 1) return backoff(first, job.without_progress() - 1);
      break;
  }
  return std::chrono::seconds(0);
}

std::chrono::seconds backoff(uint32_t first, uint32_t restarts) {
  const uint32_t doublings = std::min(restarts == 0 ? 0 : restarts - 1, 5u);
  return std::chrono::seconds(static_cast<int64_t>(first) << doublings);
}

}  // namespace telar::server::jobs
