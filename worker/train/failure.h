// Which of the failure classes an error belongs to. The class decides who pays for the retry and is the exit code.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "telar/v1/rank.pb.h"

namespace telar::train {

// The same error, marked. The first mark stays: the place nearest to the cause knows best.
absl::Status with_class(v1::FailureClass failure_class, absl::Status status);

// The same error, mark included, with `prefix` in front of its message.
absl::Status with_prefix(const std::string& prefix, const absl::Status& status);

// The mark, or else what the code says: RESOURCE_EXHAUSTED is out of memory, UNAVAILABLE and DEADLINE_EXCEEDED are
// communication, everything else is a bug of ours.
v1::FailureClass class_of(const absl::Status& status);

}  // namespace telar::train
