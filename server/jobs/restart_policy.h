// Why an epoch ended, whether another one follows, and which budget pays for it.
#pragma once

#include <chrono>
#include <string>

#include "server/jobs/record.pb.h"

namespace telar::server::jobs {

enum class Budget {
  kNone,  // Interrupted from outside, as by a drain: costs the job nothing.
  kOwn,   // restart.max_restarts: what the job's own code and data did.
  kNode,  // restart.max_node_restarts: what a node, a device or the network between them did.
};

struct Verdict {
  v1::FailureClass failure_class = v1::FAILURE_CLASS_UNSPECIFIED;
  Budget budget = Budget::kOwn;
  bool retry = false;
  // False while only victims of a broken communication are known: the rank that broke it may still be heard of.
  bool definite = false;
  std::string node;     // Of the rank that is the cause.
  std::string message;  // "rank 1 on node b: DATA: train.bin ..."
};

// The cause is the first failure that is no mere COMMUNICATION victim; where there are only victims, it is the network.
// CONFIG, DATA and OUT_OF_MEMORY are not retried, nor is what its budget no longer pays, nor a failure behind
// restart.max_without_progress restarts in a row that brought nothing (NO_PROGRESS). Wants at least one failure in
// `record`, or an interruption.
Verdict judge(const JobRecord& record);

// Since the last restart came a further step than any before, or a newer checkpoint that may be published.
bool made_progress(const JobRecord& record);

// Counts a restart: its budget, the guard against restarts without progress, the blame. Returns the delay before it:
// after the job's own failures it doubles with each; after those of a node there is none for the first, and it doubles
// with each that follows without progress; an interruption costs nothing and waits for nothing.
std::chrono::seconds count_restart(JobRecord& record, const Verdict& verdict);

// `first`, doubled for each restart behind the first, up to 32 times.
std::chrono::seconds backoff(uint32_t first, uint32_t restarts);

}  // namespace telar::server::jobs
