// Collectives between processes on CPUs, over TCP by Gloo's unbound buffers.
//
// How: every collective starts with one packet to and from every peer, which says what the sender believes the call is.
// A message of up to kInlineBytes to a peer travels inside the packet, so a small collective is one exchange. In a
// large one the members, now agreed, exchange their parts directly: member r receives part r of everyone, reduces it,
// and (all_reduce) sends the result to all. A member moves no more bytes than in a ring.
//
// Sums run over the members in rank order for every element, whatever the message's size and the path: all_reduce gives
// the bits of reduce_scatter + all_gather, and the bits of a loop over the ranks. bf16 and f16 are summed in f32,
// rounded once.
//
// Errors: the first one latches and resets all connections, so that no peer waits for this rank longer than a moment.
//   INVALID_ARGUMENT    an argument of this call, before anything was sent
//   UNAVAILABLE         a peer is gone, has failed itself, or makes a different call
//   DEADLINE_EXCEEDED   a peer did not come within call_timeout
// Each names communicator, call, own rank and, where known, the peer.
//
// send() returns when the peer has posted its recv(): two ranks that both send first wait for their timeout.
// all_gather's x may be its place in y; reduce_scatter's y may be its place in x. No other overlap is allowed.
// Threads: one call at a time on one communicator; any number of communicators side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/collectives.h"
#include "worker/backend/cpu/gloo_mesh.h"

namespace telar::backend::cpu {

class GlooCommunicator final : public Communicator {
 public:
  static constexpr size_t kInlineBytes = 32 * 1024;
  static constexpr size_t kChunkBytes = 512 * 1024;  // Received and reduced at a time, while the next one arrives.

  // `mesh` is null for a group of one.
  GlooCommunicator(const CommunicatorOptions& options, std::unique_ptr<GlooMesh> mesh);
  ~GlooCommunicator() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  absl::Status all_reduce(Stream&, ReduceOp op, InOut x) override;
  absl::Status all_gather(Stream&, In x, Out y) override;
  absl::Status reduce_scatter(Stream&, ReduceOp op, In x, Out y) override;
  absl::Status broadcast(Stream&, int root, InOut x) override;
  absl::Status send(Stream&, int peer, In x) override;
  absl::Status recv(Stream&, int peer, Out y) override;
  absl::Status barrier() override;

 private:
  struct Header;
  struct Parts;
  using Bytes = std::span<const std::byte>;

  absl::Status run(const Header& header, const std::function<absl::Status()>& body);
  absl::Status exchange(Header header, const std::function<Bytes(int peer)>& payload);
  absl::Status check_packet(const Header& mine, int peer) const;
  void post_packet(const Header& header, int peer, uint64_t slot, Bytes payload);
  std::byte* inbox(int peer);
  std::byte* outbox(int peer);
  int after(int distance) const { return (options_.rank + distance) % options_.size; }
  int before(int distance) const { return (options_.rank + options_.size - distance) % options_.size; }

  void reduce_inline(ReduceOp op, DType dtype, const std::byte* own, std::byte* out, int64_t elements);
  void reduce_parts_of_all(ReduceOp op, const Parts& parts, const std::byte* x, std::byte* out);
  void gather_parts(const Parts& parts, std::byte* y);

  const CommunicatorOptions options_;
  std::unique_ptr<GlooMesh> mesh_;
  absl::Status error_;
  uint64_t collectives_ = 0;                         // Calls so far, equal on all members.
  std::vector<uint64_t> sent_, received_;            // Point-to-point calls so far, by peer.
  std::vector<std::byte> packets_;                   // An inbox and an outbox a member.
  std::vector<std::byte> staging_;                   // Two chunks a member, made by the first large reduction.
  std::vector<GlooMesh::Buffer> in_, out_, chunks_;  // Over the two above; destroyed before them.
};

}  // namespace telar::backend::cpu
