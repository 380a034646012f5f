// From the layer below to the wire.
#pragma once

#include <utility>

#include <grpcpp/support/status.h>
#include "absl/status/statusor.h"
#include "common/errors.h"

namespace telar::server::rpc {

// Hands over what a call gave, or its error with reason and details.
template <typename T>
grpc::Status answer(absl::StatusOr<T> result, T* out) {
  if (result.ok()) *out = *std::move(result);
  return to_grpc(result.status());
}

}  // namespace telar::server::rpc
