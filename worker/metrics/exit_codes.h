// The exit codes of a rank process: what is left of a failure when nothing else could be written. A RankFailure event
// says more and wins over the code.
#pragma once

#include "telar/v1/rank.pb.h"

namespace telar::metrics {

enum ExitCode : int {
  kExitFinished = 0,
  kExitInterrupted = 10,  // SIGTERM came, the state is saved, the run is not complete.
  kExitNoRetry = 11,      // A retry would fail again, for a reason that no class below is for: taken as CONFIG.
  kExitFailureBase = 20,  // 20 + FailureClass: CONFIG 21, DATA 22, ..., STORAGE 26, INTERNAL 29.
};

// The code to end with. CRASH and NODE_LOST are never a rank's own words: they become INTERNAL's.
inline int exit_code(v1::FailureClass failure) {
  const bool own = failure >= v1::CONFIG && failure <= v1::INTERNAL && failure != v1::CRASH && failure != v1::NODE_LOST;
  return kExitFailureBase + static_cast<int>(own ? failure : v1::INTERNAL);
}

// Documented for people in docs/failures.md. UNSPECIFIED for a run that did not fail; CRASH for a signal (128 + n) and
// every code not listed above.
inline v1::FailureClass failure_class(int code) {
  if (code == kExitFinished || code == kExitInterrupted) return v1::FAILURE_CLASS_UNSPECIFIED;
  if (code == kExitNoRetry) return v1::CONFIG;
  const int offset = code - kExitFailureBase;
  const bool listed = offset >= v1::CONFIG && offset <= v1::INTERNAL && offset != v1::NODE_LOST;
  return listed ? static_cast<v1::FailureClass>(offset) : v1::CRASH;
}

}  // namespace telar::metrics
