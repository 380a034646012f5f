// absl::Status inside, google.rpc.Status on the wire; this is the one place that turns one into the other. What is no
// UTF-8 in a message, a violation or metadata becomes '?' (utf8.h), as nobody could read the answer otherwise.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>
#include "absl/status/status.h"

namespace telar {

// One thing wrong with a request: where, and the value, rule and nearest fix in a sentence.
struct Violation {
  std::string field;        // Path in the request: "spec.batch.global".
  std::string description;  // "10 is not divisible by parallel.data * batch.micro = 4"
};

inline constexpr const char* kErrorDomain = "telar.dev";

// INVALID_ARGUMENT with every violation at once; to_grpc sends them as a BadRequest.
absl::Status invalid(const std::vector<Violation>& violations);
// Any other error with a machine-readable reason (UPPER_SNAKE, at most 63 characters).
// `metadata`: the variables of the message, for programs.
absl::Status error(absl::StatusCode code, const std::string& reason, const std::string& message,
                   const std::map<std::string, std::string>& metadata = {});

// RESOURCE_EXHAUSTED, with the time after which the same request may go through.
absl::Status exhausted(const std::string& reason, const std::string& message, std::chrono::milliseconds retry);

// What invalid() and error() stored; empty when there is none. Survives the wire.
std::vector<Violation> violations(const absl::Status& status);
std::string reason(const absl::Status& status);
std::map<std::string, std::string> metadata(const absl::Status& status);
std::optional<std::chrono::milliseconds> retry_delay(const absl::Status& status);  // What exhausted() stored.

grpc::Status to_grpc(const absl::Status& status);
absl::Status from_grpc(const grpc::Status& status);

}  // namespace telar
