// Deadlines of calls that no wall clock moves.
#pragma once

#include <atomic>
#include <chrono>

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

namespace telar {

// gRPC counts deadlines on the steady clock, but sleeps until the next one on Abseil's condition variables, which wait
// for a time of the wall's clock. Set back by an hour in that sleep, nothing of gRPC's in this process times out for an
// hour. So a thread of ours looks as well, and cancels what is late. One for each call of the blocking API: made before
// it, destroyed behind it.
class CallDeadline {
 public:
  // Also sets the deadline of `context`, of which the other side is told. `context` must outlive this.
  CallDeadline(grpc::ClientContext& context, std::chrono::steady_clock::duration longest);
  ~CallDeadline();
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

  // How the call ended; DEADLINE_EXCEEDED where it was cancelled here.
  grpc::Status told(const grpc::Status& status) const;

 private:
  class Watch;

  grpc::ClientContext& context_;
  const std::chrono::steady_clock::time_point end_;
  std::atomic<bool> passed_ = false;
};

}  // namespace telar
