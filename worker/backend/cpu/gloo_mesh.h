// A full mesh of TCP connections between the members of a group, as Gloo makes them, with deadlines of our own.
//
// Gloo moves a message only once its receiver has posted a buffer for it, and ends the process from a thread of its
// own when the message is longer than that buffer. So nobody may post a receive before knowing that the sender agrees
// on the length: see Packet in gloo_communicator.cc.
//
// When a connection breaks, Gloo tells those who wait for messages that have not started, and forgets those who wait
// for one half sent or half received: these would sit out their timeout. So every peer has a tripwire, a receive that
// nothing is ever sent to and that Gloo therefore always tells; and a thread that wakes the waiting call ten times a
// second to look at it.
//
// send, recv and their waits may throw what Gloo throws. The mesh is closed then: the caller's unwinding destroys
// buffers, which must be out of the hands of Gloo's thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

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

  ~GlooMesh();

  // Memory to send from and receive into; alive as long as the buffer.
  Buffer wrap(const void* data, size_t bytes);

  // Starts the clock of one call: waits below end at now + timeout.
  void start_call(std::chrono::milliseconds timeout);
  bool expired() const { return Clock::now() >= deadline_; }

  static constexpr size_t kWhole = gloo::transport::UnboundBuffer::kUnspecifiedByteCount;
  void send(gloo::transport::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset = 0, size_t bytes = kWhole);
  void recv(gloo::transport::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset = 0, size_t bytes = kWhole);
  // For the end of one send or recv of `buffer`.
  void wait_send(gloo::transport::UnboundBuffer& buffer, int peer);
  void wait_recv(gloo::transport::UnboundBuffer& buffer, int peer);
  // Whom the last of the four above was about; -1 when the call has made none.
  int peer() const { return peer_; }

  // Resets every connection: the peers' waits for this rank fail at once instead of at their timeout.
  void close();

 private:
  explicit GlooMesh(std::shared_ptr<gloo::Context> context);
  std::chrono::milliseconds remaining() const;
  template <typename Wait>
  void wait(gloo::transport::UnboundBuffer& buffer, int peer, const Wait& wait_for);
  void check_alive(int peer);
  void pulse();

  const std::shared_ptr<gloo::Context> context_;
  std::vector<std::byte> tripwire_bytes_;  // One a member.
  std::vector<Buffer> tripwires_;          // By member; null for this rank.
  Clock::time_point deadline_;
  int peer_ = -1;

  std::mutex mutex_;
  std::condition_variable stopped_;
  gloo::transport::UnboundBuffer* waiting_ = nullptr;  // Guarded by mutex_.
  bool stop_ = false;                                  // Guarded by mutex_.
  std::thread pulse_;                                  // The last member: it uses all others.
};

}  // namespace telar::backend::cpu
