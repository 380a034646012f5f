// Why an epoch ended, whether another one follows, and which budget pays for it.
#pragma once

#include <chrono>
#include <string>

#include "server/jobs/record.pb.h"

namespace telar::server::jobs {

enum class Budget {
  kNone,  // Interrupted from outside, as by a drain: costs the job nothing.
  kOwn,   // restart.max_restarts
  kNode,  // restart.max_node_restarts
};

struct Verdict {
  v1::FailureClass failure_class = v1::FAILURE_CLASS_UNSPECIFIED;
  Budget budget = Budget::kOwn;
  bool retry = false;
  // False while only victims of a broken communication are known: the rank that broke it may still be heard of.
  bool definite = false;
  std::string message;  // "rank 1 on node b: DATA: train.bin ..."
};

// The cause is the first failure that is no mere COMMUNICATION victim; CONFIG, DATA and OUT_OF_MEMORY are not retried,
// nor is what its budget no longer pays. Wants at least one failure in `record`, or an interruption.
Verdict judge(const JobRecord& record);

// The delay before restart number `restarts` (1 is the first) of a job's own failures: doubles from `first` up to 32
// times of it. After a node loss or a drain there is none.
std::chrono::seconds backoff(uint32_t first, uint32_t restarts);

}  // namespace telar::server::jobs
