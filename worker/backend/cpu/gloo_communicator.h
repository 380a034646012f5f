// Collectives between processes on CPUs, over TCP by Gloo's unbound buffers.
//
// How: every collective starts with a block from everyone to everyone, in ceil(log2 size) rounds of one packet, which
// says what its sender believes the call is. A small message travels inside the block, and is all there is to do. In a
// large collective the members, now agreed, exchange their parts directly: member r receives part r of everyone,
// reduces it, and (all_reduce) sends the result to all. A member moves no more bytes than in a ring.
//
// Sums run over the members in rank order for every element, whatever the message's size and the path: all_reduce gives
// the bits of reduce_scatter + all_gather, and the bits of a loop over the ranks. bf16 and f16 are summed in f32,
// rounded once.
//
// Errors: the first one latches and resets all connections of the rank, so that no peer waits for it longer than a
// moment, nor does a call of another of its groups.
//   INVALID_ARGUMENT    an argument of this call, before anything was sent
//   UNAVAILABLE         a peer is gone, has failed itself, or makes a different call
//   DEADLINE_EXCEEDED   a peer did not come within call_timeout
// Each names communicator, call, own rank and, where known, the peer; in the other groups the one that failed, too.
//
// send() returns when the peer has posted its recv(): two ranks that both send first on one communicator wait for their
// timeout. exchange() is a send and a recv of the same packets, both under way at once. Threads: one call at a time on
// one communicator; any number of communicators side by side.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/collectives.h"
#include "worker/backend/cpu/gloo_channel.h"

namespace telar::backend::cpu {

class GlooCommunicator final : public Communicator {
 public:
  // A packet of a header and what travels with it: one block of two members, fewer bytes a block of more.
  static constexpr size_t kPacketBytes = 256 * 1024;
  static constexpr size_t kChunkBytes = 512 * 1024;  // Received and reduced at a time, while the next one arrives.

  // Rank and size within the group, whose channel it is.
  GlooCommunicator(int rank, int size, std::chrono::milliseconds call_timeout, std::unique_ptr<GlooChannel> channel);
  ~GlooCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status all_reduce(Stream&, ReduceOp op, InOut x) override;
  absl::Status all_gather(Stream&, In x, Out y) override;
  absl::Status reduce_scatter(Stream&, ReduceOp op, In x, Out y) override;
  absl::Status broadcast(Stream&, int root, InOut x) override;
  absl::Status send(Stream&, int peer, In x) override;
  absl::Status recv(Stream&, int peer, Out y) override;
  absl::Status exchange(Stream&, int to, In x, int from, Out y) override;
  absl::Status barrier() override;

 private:
  struct Header;
  struct Parts;
  using Bytes = std::span<const std::byte>;

  absl::Status run(const Header& header, const std::function<absl::Status()>& body);
  absl::Status exchange(Header header, Bytes payload);
  absl::Status check_header(const Header& mine, const std::byte* packet, int peer) const;
  GlooChannel::Buffer post_send(int peer, const View& x);
  void finish_send(int peer, const GlooChannel::Buffer& rest);
  absl::Status finish_recv(int peer, const View& y, GlooChannel::Buffer& target);
  const std::byte* payload_of(int member) const;
  std::vector<const std::byte*> payloads(size_t offset) const;
  int after(int distance) const { return (rank_ + distance) % size_; }
  int before(int distance) const { return (rank_ + size_ - distance) % size_; }

  void reduce_parts_of_all(ReduceOp op, const Parts& parts, const std::byte* x, std::byte* out);
  void gather_parts(const Parts& parts, std::byte* y);

  const int rank_, size_;
  const std::chrono::milliseconds call_timeout_;
  const std::unique_ptr<GlooChannel> channel_;
  absl::Status error_;
  uint64_t collectives_ = 0;               // Calls so far, equal on all members.
  std::vector<uint64_t> sent_, received_;  // Point-to-point calls so far, by peer.

  size_t packet_bytes_ = 0;               // The longest packet.
  size_t inline_bytes_ = 0;               // The longest payload of a block.
  size_t stride_ = 0;                     // From block to block in the running exchange.
  std::unique_ptr<std::byte[]> blocks_;   // The blocks of this rank, the one before it, the one before that, ...
  std::unique_ptr<std::byte[]> packet_;   // Of the running send.
  std::unique_ptr<std::byte[]> arrived_;  // Of the running recv.
  std::unique_ptr<std::byte[]> staging_;  // Two chunks a member, made by the first large reduction.
  std::vector<GlooChannel::Buffer> rounds_, chunks_;  // Over blocks_ and staging_; destroyed before them.
  GlooChannel::Buffer point_, arriving_;              // Over packet_ and arrived_.
};

}  // namespace telar::backend::cpu
