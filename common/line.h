// A connection to the coordinator that is given up when it may be dead.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <grpcpp/support/status.h>

#include "common/channel.h"

namespace telar {

// To one service of it, such as v1::Cluster. Thread safe.
template <typename Service>
class Line {
 public:
  using Stub = typename Service::Stub;

  explicit Line(std::string address)  // host:port, or several (addresses.h).
      : address_(std::move(address)), stub_(Service::NewStub(dial(address_))) {}

  const std::string& address() const { return address_; }
  // For one call: shared, as another thread may renew the line meanwhile.
  std::shared_ptr<Stub> stub() const {
    const std::lock_guard lock(mutex_);
    return stub_;
  }
  // The connection may be dead without anybody having been told, and gRPC's pause before it dials again an hour longer,
  // as its deadlines (call_deadline.h). Calls from now on go over another one; those under way end with the old one.
  void renew() {
    std::shared_ptr<Stub> stub = Service::NewStub(dial(address_, Connection::kOwn));
    const std::lock_guard lock(mutex_);
    stub_.swap(stub);
  }
  // Behind a call that ended so.
  void renew_unless_answered(const grpc::Status& status) {
    const grpc::StatusCode code = status.error_code();
    if (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED) renew();
  }

 private:
  const std::string address_;
  mutable std::mutex mutex_;
  std::shared_ptr<Stub> stub_;  // Guarded by mutex_.
};

}  // namespace telar
