// A full mesh of TCP connections between the members of a group, as Gloo makes them, with deadlines of our own.
//
// Gloo moves a message only once its receiver has posted a buffer for it, and ends the process from a thread of its
// own when the message is longer than that buffer. So nobody may post a receive before knowing that the sender agrees
// on the length: see Packet in gloo_communicator.cc.
//
// Everything here but connect() may throw what Gloo throws; after that the mesh must only be closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "absl/status/statusor.h"
#include "worker/backend/collectives.h"

namespace telar::backend::cpu {

class GlooMesh {
 public:
  using Clock = std::chrono::steady_clock;
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  // Blocks until every member is connected; null for a group of one, which needs no network. INVALID_ARGUMENT: options;
  // DEADLINE_EXCEEDED or UNAVAILABLE: a member did not come within connect_timeout, or died while connecting.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> connect(KeyValueStore& store, const CommunicatorOptions& options);

  // Memory to send from and receive into; alive as long as the buffer.
  Buffer wrap(const void* data, size_t bytes);

  // Starts the clock of one call: waits below end at now + timeout.
  void start_call(std::chrono::milliseconds timeout);
  bool expired() const { return Clock::now() >= deadline_; }

  void wait_send(gloo::transport::UnboundBuffer& buffer, int peer);
  void wait_recv(gloo::transport::UnboundBuffer& buffer, int peer);
  // Whom the last wait was for; -1 when the call has not waited.
  int waited_for() const { return waited_for_; }

  // Resets every connection: the peers' waits for this rank fail at once instead of at their timeout.
  void close();

 private:
  explicit GlooMesh(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}
  std::chrono::milliseconds remaining() const;

  std::shared_ptr<gloo::Context> context_;
  Clock::time_point deadline_;
  int waited_for_ = -1;
};

}  // namespace telar::backend::cpu
