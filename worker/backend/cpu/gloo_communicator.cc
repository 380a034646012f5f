#include "worker/backend/cpu/gloo_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/cpu/cpu.h"
#include "worker/backend/cpu/gloo_reduce.h"

namespace telar::backend::cpu {
namespace {

enum Kind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kPointToPoint, kBarrier };
constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send/recv", "barrier"};
constexpr uint8_t kNoReduce = 0xff;
constexpr uint32_t kMagic = 0x544c5231;  // "TLR1": a peer built from another packet layout is told apart.

// Gloo matches messages by peer and slot, first in, first out.
enum Slot : uint64_t { kBlockSlot, kDataSlot, kPeerPacketSlot, kPeerDataSlot };
static_assert(kPeerDataSlot < GlooChannel::kSlots);

// Padded, so that what follows is aligned.
constexpr size_t kHeaderBytes = 64;

// The most blocks that one round moves.
int most_blocks(int size) {
  int most = 1;
  for (int distance = 1; distance < size; distance *= 2) most = std::max(most, std::min(distance, size - distance));
  return most;
}

}  // namespace

// What its sender believes the call to be. Equal on all members but by mistake.
struct GlooCommunicator::Header {
  uint32_t magic = kMagic;
  Kind kind = kBarrier;
  uint8_t reduce = kNoReduce;
  DType dtype = DType::kU8;
  uint8_t unused = 0;
  int32_t size = 0;  // Of the group.
  int32_t root = 0;
  int64_t elements = 0;  // Of a member's part for all_gather and reduce_scatter, of the whole otherwise.
  uint64_t sequence = 0;

  bool operator==(const Header&) const = default;
  std::string describe() const {
    std::string text = absl::StrCat(kNames[kind], " of ", elements, " ", std::string(name_of(dtype)));
    if (reduce != kNoReduce)
      absl::StrAppend(&text, reduce == static_cast<uint8_t>(ReduceOp::kSum) ? " (sum)" : " (max)");
    if (kind == kBroadcast) absl::StrAppend(&text, " from rank ", root);
    return absl::StrCat(text, " as call ", sequence, " in a group of ", size);
  }
};

// How `elements` are dealt to the members, as evenly as whole elements allow.
struct GlooCommunicator::Parts {
  DType dtype;
  int64_t elements;
  int members;

  int64_t begin(int member) const {
    return elements / members * member + std::min<int64_t>(member, elements % members);
  }
  int64_t count(int member) const { return begin(member + 1) - begin(member); }
  size_t width() const { return size_of(dtype); }
  size_t offset(int member) const { return static_cast<size_t>(begin(member)) * width(); }
  size_t bytes(int member) const { return static_cast<size_t>(count(member)) * width(); }
};

GlooCommunicator::GlooCommunicator(int rank, int size, std::chrono::milliseconds call_timeout,
                                   std::unique_ptr<GlooChannel> channel)
    : rank_(rank),
      size_(size),
      call_timeout_(call_timeout),
      channel_(std::move(channel)),
      sent_(size),
      received_(size) {
  static_assert(sizeof(Header) <= kHeaderBytes && std::is_trivially_copyable_v<Header>);
  if (size_ == 1) return;
  const size_t most = most_blocks(size_);
  packet_bytes_ = std::max(kHeaderBytes + kPacketBytes, 2 * kHeaderBytes * most);
  inline_bytes_ = packet_bytes_ / most - kHeaderBytes;
  // The last round's packet, of whatever length, begins behind less than size_ blocks.
  const size_t block_bytes = size_ * (kHeaderBytes + inline_bytes_) + packet_bytes_;
  blocks_ = std::make_unique_for_overwrite<std::byte[]>(block_bytes);
  for (int distance = 1; distance < size_; distance *= 2) rounds_.push_back(channel_->wrap(blocks_.get(), block_bytes));
  packet_ = std::make_unique_for_overwrite<std::byte[]>(packet_bytes_);
  point_ = channel_->wrap(packet_.get(), packet_bytes_);
  arrived_ = std::make_unique_for_overwrite<std::byte[]>(packet_bytes_);
  arriving_ = channel_->wrap(arrived_.get(), packet_bytes_);
}

GlooCommunicator::~GlooCommunicator() = default;

// Runs one call under the latch; turns what Gloo throws into a status.
absl::Status GlooCommunicator::run(const Header& header, const std::function<absl::Status()>& body) {
  if (!error_.ok()) return error_;
  try {
    absl::Status status = channel_->start_call(kNames[header.kind], call_timeout_);
    if (status.ok()) status = body();
    if (status.ok()) return status;
    error_ = channel_->annotate(status);
  } catch (const std::exception& problem) {
    error_ = channel_->error().ok() ? channel_->annotate(absl::InternalError(problem.what())) : channel_->error();
  }
  channel_->fail(error_);
  return error_;
}

absl::Status GlooCommunicator::check_header(const Header& mine, const std::byte* packet, int peer) const {
  Header theirs;
  std::memcpy(&theirs, packet, sizeof(theirs));
  if (theirs == mine) return absl::OkStatus();
  if (theirs.magic != kMagic || theirs.kind > kBarrier) {
    return absl::UnavailableError(absl::StrCat("rank ", peer, " sent what is no packet of this program"));
  }
  return absl::UnavailableError(
      absl::StrCat("the members disagree: rank ", peer, " makes ", theirs.describe(), ", this rank ", mine.describe()));
}

// A block from everyone to everyone, of equally long payloads: in round k each member passes on the 2^k blocks that it
// has. Receives take the longest packet whatever we expect, since a longer message than its buffer ends the process.
// After this, all peers are in this call.
absl::Status GlooCommunicator::exchange(Header header, Bytes payload) {
  header.sequence = collectives_++;
  stride_ = kHeaderBytes + payload.size();
  std::memcpy(blocks_.get(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(blocks_.get() + kHeaderBytes, payload.data(), payload.size());
  for (size_t round = 0; round < rounds_.size(); ++round) {
    const int distance = 1 << round;
    channel_->recv(*rounds_[round], before(distance), kBlockSlot, distance * stride_, packet_bytes_);
  }
  for (size_t round = 0; round < rounds_.size(); ++round) {
    const int distance = 1 << round, count = std::min(distance, size_ - distance);
    channel_->send(*rounds_[round], after(distance), kBlockSlot, 0, count * stride_);
    channel_->wait_recv(*rounds_[round], before(distance));
    for (int block = distance; block < distance + count; ++block) {
      absl::Status status = check_header(header, blocks_.get() + block * stride_, before(block));
      if (!status.ok()) return status;
    }
  }
  for (size_t round = 0; round < rounds_.size(); ++round) channel_->wait_send(*rounds_[round], after(1 << round));
  return absl::OkStatus();
}

// What `member` brought to the exchange.
const std::byte* GlooCommunicator::payload_of(int member) const {
  return blocks_.get() + before(member) * stride_ + kHeaderBytes;
}

std::vector<const std::byte*> GlooCommunicator::payloads(size_t offset) const {
  std::vector<const std::byte*> all;
  for (int member = 0; member < size_; ++member) all.push_back(payload_of(member) + offset);
  return all;
}

// Sends part p of x to member p, and reduces this rank's part of everyone's x into `out`, chunk by chunk with the next
// chunk on its way. Members are agreed on `parts`.
void GlooCommunicator::reduce_parts_of_all(ReduceOp op, const Parts& parts, const std::byte* x, std::byte* out) {
  const int members = size_, rank = rank_;
  if (staging_ == nullptr) {
    staging_ = std::make_unique_for_overwrite<std::byte[]>(2 * members * kChunkBytes);
    for (int i = 0; i < 2 * members; ++i) chunks_.push_back(channel_->wrap(&staging_[i * kChunkBytes], kChunkBytes));
  }
  const int64_t step = static_cast<int64_t>(kChunkBytes / parts.width());
  const int64_t mine = parts.count(rank);
  const auto post_receives = [&](int64_t first) {
    if (first >= mine) return;
    const size_t bytes = std::min(step, mine - first) * parts.width();
    for (int distance = 1; distance < members; ++distance) {
      const int peer = before(distance);
      channel_->recv(*chunks_[first / step % 2 * members + peer], peer, kDataSlot, 0, bytes);
    }
  };
  post_receives(0);
  post_receives(step);

  std::vector<GlooChannel::Buffer> sources(members);
  for (int peer = 0; peer < members; ++peer) {
    if (peer != rank) sources[peer] = channel_->wrap(x + parts.offset(peer), parts.bytes(peer));
  }
  for (int64_t first = 0; first < parts.count(0); first += step) {  // Member 0 has no smaller part than any other.
    for (int distance = 1; distance < members; ++distance) {
      const int peer = after(distance);
      if (first >= parts.count(peer)) continue;
      const size_t bytes = std::min(step, parts.count(peer) - first) * parts.width();
      channel_->send(*sources[peer], peer, kDataSlot, first * parts.width(), bytes);
    }
  }

  std::vector<const std::byte*> shares(members);
  for (int64_t first = 0; first < mine; first += step) {
    const int64_t half = first / step % 2 * members;
    for (int distance = 1; distance < members; ++distance) {
      channel_->wait_recv(*chunks_[half + before(distance)], before(distance));
    }
    for (int member = 0; member < members; ++member) shares[member] = &staging_[(half + member) * kChunkBytes];
    shares[rank] = x + parts.offset(rank) + first * parts.width();
    reduce_parts(op, parts.dtype, shares, out + first * parts.width(), std::min(step, mine - first));
    post_receives(first + 2 * step);
  }
  for (int peer = 0; peer < members; ++peer) {
    if (peer == rank) continue;
    for (int64_t first = 0; first < parts.count(peer); first += step) channel_->wait_send(*sources[peer], peer);
  }
}

// Sends this rank's part of y to everyone, and receives theirs in place. Members are agreed on `parts`.
void GlooCommunicator::gather_parts(const Parts& parts, std::byte* y) {
  const int members = size_, rank = rank_;
  std::vector<GlooChannel::Buffer> targets(members), sources(members);
  for (int distance = 1; distance < members; ++distance) {
    const int peer = before(distance);
    if (parts.count(peer) == 0) continue;
    targets[peer] = channel_->wrap(y + parts.offset(peer), parts.bytes(peer));
    channel_->recv(*targets[peer], peer, kDataSlot);
  }
  for (int distance = 1; distance < members && parts.count(rank) > 0; ++distance) {
    const int peer = after(distance);
    sources[peer] = channel_->wrap(y + parts.offset(rank), parts.bytes(rank));
    channel_->send(*sources[peer], peer, kDataSlot);
  }
  for (int distance = 1; distance < members; ++distance) {
    if (targets[before(distance)]) channel_->wait_recv(*targets[before(distance)], before(distance));
  }
  for (int distance = 1; distance < members; ++distance) {
    if (sources[after(distance)]) channel_->wait_send(*sources[after(distance)], after(distance));
  }
}

absl::Status GlooCommunicator::all_reduce(Stream&, ReduceOp op, InOut x) {
  const Header header{.kind = kAllReduce,
                      .reduce = static_cast<uint8_t>(op),
                      .dtype = x.dtype,
                      .size = size(),
                      .elements = x.elements()};
  return run(header, [&] {
    absl::Status status = check_reducible(x.dtype);
    if (!status.ok() || size_ == 1) return status;
    const bool fits = x.bytes() <= inline_bytes_;
    status = exchange(header, fits ? Bytes(x.data, x.bytes()) : Bytes());
    if (!status.ok()) return status;
    if (fits) {
      reduce_parts(op, x.dtype, payloads(0), x.data, x.elements());
    } else {
      const Parts parts{x.dtype, x.elements(), size()};
      reduce_parts_of_all(op, parts, x.data, x.data + parts.offset(rank()));
      gather_parts(parts, x.data);
    }
    return status;
  });
}

absl::Status GlooCommunicator::all_gather(Stream&, In x, Out y) {
  const Header header{.kind = kAllGather, .dtype = x.dtype, .size = size(), .elements = x.elements()};
  return run(header, [&] {
    absl::Status status = check_whole("y", y, x, size());
    if (!status.ok()) return status;
    const Parts parts{y.dtype, y.elements(), size()};
    const bool fits = x.bytes() <= inline_bytes_;
    if (size_ > 1) status = exchange(header, fits ? Bytes(x.data, x.bytes()) : Bytes());
    if (!status.ok()) return status;
    std::byte* const own = y.data + parts.offset(rank());
    if (x.bytes() > 0 && own != x.data) std::memmove(own, x.data, x.bytes());  // In place others may be reading it.
    if (size_ == 1 || x.bytes() == 0) return status;
    if (!fits) {
      gather_parts(parts, y.data);
      return status;
    }
    for (int distance = 1; distance < size(); ++distance) {
      const int peer = before(distance);
      std::memcpy(y.data + parts.offset(peer), payload_of(peer), parts.bytes(peer));
    }
    return status;
  });
}

absl::Status GlooCommunicator::reduce_scatter(Stream&, ReduceOp op, In x, Out y) {
  const Header header{.kind = kReduceScatter,
                      .reduce = static_cast<uint8_t>(op),
                      .dtype = x.dtype,
                      .size = size(),
                      .elements = y.elements()};
  return run(header, [&] {
    absl::Status status = check_reducible(x.dtype);
    if (status.ok()) status = check_whole("x", x, y, size());
    if (!status.ok()) return status;
    if (size_ == 1) {
      if (x.bytes() > 0) std::memmove(y.data, x.data, x.bytes());
      return status;
    }
    const Parts parts{x.dtype, x.elements(), size()};
    const bool fits = x.bytes() <= inline_bytes_;
    status = exchange(header, fits ? Bytes(x.data, x.bytes()) : Bytes());
    if (!status.ok()) return status;
    if (fits) {
      reduce_parts(op, x.dtype, payloads(parts.offset(rank())), y.data, y.elements());
    } else {
      reduce_parts_of_all(op, parts, x.data, y.data);
    }
    return status;
  });
}

absl::Status GlooCommunicator::broadcast(Stream&, int root, InOut x) {
  const Header header{.kind = kBroadcast, .dtype = x.dtype, .size = size(), .root = root, .elements = x.elements()};
  return run(header, [&] {
    absl::Status status = check_root(root, size());
    if (!status.ok() || size_ == 1) return status;
    const bool fits = x.bytes() <= inline_bytes_, is_root = rank() == root;
    status = exchange(header, fits ? Bytes(x.data, x.bytes()) : Bytes());
    if (!status.ok() || x.bytes() == 0) return status;
    if (fits) {
      if (!is_root) std::memcpy(x.data, payload_of(root), x.bytes());
      return status;
    }
    if (!is_root) {
      const GlooChannel::Buffer target = channel_->wrap(x.data, x.bytes());
      channel_->recv(*target, root, kDataSlot);
      channel_->wait_recv(*target, root);
      return status;
    }
    std::vector<GlooChannel::Buffer> sources(size());
    for (int distance = 1; distance < size(); ++distance) {
      sources[after(distance)] = channel_->wrap(x.data, x.bytes());
      channel_->send(*sources[after(distance)], after(distance), kDataSlot);
    }
    for (int distance = 1; distance < size(); ++distance)
      channel_->wait_send(*sources[after(distance)], after(distance));
    return status;
  });
}

// What does not fit into the packet leaves when the peer has seen the packet and is ready for it.
GlooChannel::Buffer GlooCommunicator::post_send(int peer, const View& x) {
  const Header header{
      .kind = kPointToPoint, .dtype = x.dtype, .size = size(), .elements = x.elements(), .sequence = sent_[peer]++};
  const size_t inside = x.bytes() <= kPacketBytes ? x.bytes() : 0;
  std::memcpy(packet_.get(), &header, sizeof(header));
  if (inside > 0) std::memcpy(packet_.get() + kHeaderBytes, x.data, inside);
  channel_->send(*point_, peer, kPeerPacketSlot, 0, kHeaderBytes + inside);
  if (inside == x.bytes()) return nullptr;
  GlooChannel::Buffer rest = channel_->wrap(x.data, x.bytes());
  channel_->send(*rest, peer, kPeerDataSlot);
  return rest;
}

void GlooCommunicator::finish_send(int peer, const GlooChannel::Buffer& rest) {
  channel_->wait_send(*point_, peer);
  if (rest != nullptr) channel_->wait_send(*rest, peer);
}

// Behind channel_->recv(*arriving_, ...).
absl::Status GlooCommunicator::finish_recv(int peer, const View& y, GlooChannel::Buffer& target) {
  const Header header{
      .kind = kPointToPoint, .dtype = y.dtype, .size = size(), .elements = y.elements(), .sequence = received_[peer]++};
  channel_->wait_recv(*arriving_, peer);
  if (absl::Status status = check_header(header, arrived_.get(), peer); !status.ok()) return status;
  if (y.bytes() > kPacketBytes) {
    target = channel_->wrap(y.data, y.bytes());
    channel_->recv(*target, peer, kPeerDataSlot);
    channel_->wait_recv(*target, peer);
  } else if (y.bytes() > 0) {
    std::memcpy(y.data, arrived_.get() + kHeaderBytes, y.bytes());
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::send(Stream&, int peer, In x) {
  return run({.kind = kPointToPoint}, [&] {
    if (absl::Status status = check_peer(peer, rank(), size()); !status.ok()) return status;
    finish_send(peer, post_send(peer, x));
    return absl::OkStatus();
  });
}

absl::Status GlooCommunicator::recv(Stream&, int peer, Out y) {
  GlooChannel::Buffer target;
  return run({.kind = kPointToPoint}, [&] {
    if (absl::Status status = check_peer(peer, rank(), size()); !status.ok()) return status;
    channel_->recv(*arriving_, peer, kPeerPacketSlot, 0, packet_bytes_);
    return finish_recv(peer, y, target);
  });
}

absl::Status GlooCommunicator::exchange(Stream&, int to, In x, int from, Out y) {
  GlooChannel::Buffer rest, target;  // Alive until run() has dealt with what went wrong.
  return run({.kind = kPointToPoint}, [&] {
    absl::Status status = check_peer(to, rank(), size());
    if (status.ok()) status = check_peer(from, rank(), size());
    if (status.ok()) status = check_whole("y", y, x, 1);
    if (!status.ok()) return status;
    channel_->recv(*arriving_, from, kPeerPacketSlot, 0, packet_bytes_);
    rest = post_send(to, x);
    status = finish_recv(from, y, target);
    if (status.ok()) finish_send(to, rest);
    return status;
  });
}

absl::Status GlooCommunicator::barrier() {
  const Header header{.kind = kBarrier, .size = size()};
  return run(header, [&] { return size_ == 1 ? absl::OkStatus() : exchange(header, Bytes()); });
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> create_gloo_communicators(KeyValueStore& store,
                                                                                     const GangOptions& options,
                                                                                     std::span<const Group> groups) {
  if (absl::Status status = check_groups(options, groups); !status.ok()) return status;
  std::set<int> peers;
  std::map<uint64_t, std::string> numbers;
  for (const Group& group : groups) {
    peers.insert(group.ranks.begin(), group.ranks.end());
    const auto [other, is_new] = numbers.emplace(GlooChannel::number_of(group.name), group.name);
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat("communicators '", group.name, "' and '", other->second,
                                                   "': their names have one hash; rename one of them"));
  }
  peers.erase(options.rank);
  std::shared_ptr<GlooMesh> mesh;
  if (!peers.empty()) {
    auto connected = GlooMesh::connect(store, options, std::vector<int>(peers.begin(), peers.end()));
    if (!connected.ok()) return connected.status();
    mesh = *std::move(connected);
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (const Group& group : groups) {
    const int size = static_cast<int>(group.ranks.size());
    const int rank = static_cast<int>(std::ranges::find(group.ranks, options.rank) - group.ranks.begin());
    auto channel = std::make_unique<GlooChannel>(size == 1 ? nullptr : mesh, group, rank);
    communicators.push_back(std::make_unique<GlooCommunicator>(rank, size, options.call_timeout, std::move(channel)));
  }
  return communicators;
}

}  // namespace telar::backend::cpu
