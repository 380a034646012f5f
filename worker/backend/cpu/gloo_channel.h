// What one group of a rank sees of the mesh: its members by their place in the group, slots that no other group uses,
// and one deadline for all waits of a call.
//
// send, recv and their waits may throw what Gloo throws. The mesh has failed by then: the caller's unwinding destroys
// buffers, which must be out of the hands of Gloo's thread.
// Threads: one caller at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "worker/backend/collectives.h"
#include "worker/backend/cpu/gloo_mesh.h"

namespace telar::backend::cpu {

class GlooChannel {
 public:
  using Clock = GlooMesh::Clock;
  using Buffer = std::unique_ptr<GlooMesh::UnboundBuffer>;

  // `rank` is the place in the group. The mesh has a connection to every other member; null in a group of one.
  GlooChannel(std::shared_ptr<GlooMesh> mesh, const Group& group, int rank);

  // Equal for groups of one name. Two names of one value are told apart before any message: see create.
  static uint64_t number_of(const std::string& group);

  Buffer wrap(const void* data, size_t bytes) { return mesh_->wrap(data, bytes); }

  // Starts the clock of one call: waits below end at now + timeout. The error of another group of this rank, if any.
  absl::Status start_call(const char* call, std::chrono::milliseconds timeout);

  static constexpr uint64_t kSlots = 8;  // Of a group.
  static constexpr size_t kWhole = GlooMesh::UnboundBuffer::kUnspecifiedByteCount;
  void send(GlooMesh::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset = 0, size_t bytes = kWhole);
  void recv(GlooMesh::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset = 0, size_t bytes = kWhole);
  // For the end of one send or recv of `buffer`.
  void wait_send(GlooMesh::UnboundBuffer& buffer, int peer);
  void wait_recv(GlooMesh::UnboundBuffer& buffer, int peer);

  // `status` with communicator, call and rank in front.
  absl::Status annotate(const absl::Status& status) const;
  // Why the running call threw, annotated, with the peer that it was about; OK before.
  const absl::Status& error() const { return error_; }
  // The running call has failed: as GlooMesh::fail().
  void fail(const absl::Status& annotated);

 private:
  std::chrono::milliseconds remaining() const;
  template <typename Wait>
  void wait(GlooMesh::UnboundBuffer& buffer, int peer, const Wait& wait_for);
  void give_up(const std::exception& problem);

  const std::shared_ptr<GlooMesh> mesh_;  // Shared with the rank's other groups.
  const Group group_;
  const int rank_;
  const uint64_t first_slot_;
  const char* call_ = "";
  Clock::time_point deadline_;
  int peer_ = -1;  // Whom the last send, recv or wait was about.
  absl::Status error_;
};

}  // namespace telar::backend::cpu
