// The TCP connections of one rank to all peers of its groups, as Gloo makes them: one a peer, however many groups share
// it. Messages of different groups differ in their slots; see gloo_channel.h.
//
// Gloo moves a message only once its receiver has posted a buffer for it, so a message that nobody is ready for holds
// up no other. It ends the process from a thread of its own when the message is longer than that buffer: nobody may
// post a receive before knowing that the sender agrees on the length; see Header in gloo_communicator.cc.
//
// When a connection breaks, Gloo tells those who wait for messages that have not started, and forgets those who wait
// for one half sent or half received: these would sit out their timeout. So every peer has a tripwire, a receive that
// nothing is ever sent to and that Gloo therefore always tells; and a thread wakes the waiting calls ten times a second
// to look at it.
//
// The first failure closes all connections and wakes all waiting calls of this rank: fail().
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/collectives.h"

namespace telar::backend::cpu {

class GlooMesh {
 public:
  using Clock = std::chrono::steady_clock;
  using UnboundBuffer = gloo::transport::UnboundBuffer;

  // Blocks until every peer is connected. INVALID_ARGUMENT: listen_host; DEADLINE_EXCEEDED or UNAVAILABLE: a peer did
  // not come within connect_timeout, or died while connecting; FAILED_PRECONDITION: a peer has no group with this rank.
  // Ranks meet by the keys "communicator/<gang>/<rank>".
  static absl::StatusOr<std::shared_ptr<GlooMesh>> connect(KeyValueStore& store, const GangOptions& options,
                                                           const std::vector<int>& peers);
  ~GlooMesh();

  // Memory to send from and receive into; alive as long as the buffer.
  std::unique_ptr<UnboundBuffer> wrap(const void* data, size_t bytes);

  // Closes every connection: the peers' waits for this rank fail at once instead of at their timeout. The first call
  // counts.
  void fail(const absl::Status& cause);
  absl::Status failure() const;

  // Throws what broke the connection, or that this rank has failed.
  void check_alive(int peer, std::chrono::milliseconds timeout);

  // While it lives, a wait for `buffer` is interrupted at every pulse and by fail().
  class Watched {
   public:
    Watched(GlooMesh& mesh, UnboundBuffer& buffer);
    ~Watched();
    Watched(const Watched&) = delete;

   private:
    GlooMesh& mesh_;
    UnboundBuffer* const buffer_;
  };

 private:
  GlooMesh(std::shared_ptr<gloo::transport::Context> context, const std::vector<int>& peers);
  void interrupt_all();  // With mutex_ held.
  void pulse();

  const std::shared_ptr<gloo::transport::Context> context_;
  const std::vector<int> peers_;
  std::vector<std::byte> tripwire_bytes_;                  // One a rank.
  std::vector<std::unique_ptr<UnboundBuffer>> tripwires_;  // By rank; null for those that are no peers.
  std::mutex tripwire_mutex_;                              // One look at a time: an interruption is for one wait.

  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  std::vector<UnboundBuffer*> watched_;  // Guarded by mutex_.
  bool stop_ = false;                    // Guarded by mutex_.
  absl::Status failure_;                 // Guarded by mutex_.
  std::thread pulse_;                    // The last member: it uses all others.
};

}  // namespace telar::backend::cpu
