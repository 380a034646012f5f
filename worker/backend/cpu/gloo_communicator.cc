#include "worker/backend/cpu/gloo_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
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
enum Slot : uint64_t { kPacketSlot = 1, kDataSlot, kPeerPacketSlot, kPeerDataSlot };

// A packet is a header, padded so that what follows is aligned, and up to kInlineBytes of payload.
constexpr size_t kHeaderBytes = 64;
constexpr size_t kPacketBytes = kHeaderBytes + GlooCommunicator::kInlineBytes;

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

GlooCommunicator::GlooCommunicator(const CommunicatorOptions& options, std::unique_ptr<GlooMesh> mesh)
    : options_(options), mesh_(std::move(mesh)), sent_(options.size), received_(options.size) {
  static_assert(sizeof(Header) <= kHeaderBytes && std::is_trivially_copyable_v<Header>);
  if (mesh_ == nullptr) return;
  packets_.resize(2 * options_.size * kPacketBytes);
  for (int peer = 0; peer < options_.size; ++peer) {
    in_.push_back(mesh_->wrap(inbox(peer), kPacketBytes));
    out_.push_back(mesh_->wrap(outbox(peer), kPacketBytes));
  }
}

GlooCommunicator::~GlooCommunicator() = default;

std::byte* GlooCommunicator::inbox(int peer) { return packets_.data() + 2 * peer * kPacketBytes; }
std::byte* GlooCommunicator::outbox(int peer) { return inbox(peer) + kPacketBytes; }

// Runs one call under the latch; turns what Gloo throws into a status.
absl::Status GlooCommunicator::run(const Header& header, const std::function<absl::Status()>& body) {
  if (!error_.ok()) return error_;
  absl::Status status;
  try {
    if (mesh_ != nullptr) mesh_->start_call(options_.call_timeout);
    status = body();
  } catch (const std::exception& problem) {
    const int peer = mesh_ == nullptr ? -1 : mesh_->peer();
    const std::string blame = peer < 0 ? "" : absl::StrCat("with rank ", peer, ": ");
    const std::string message = absl::StrCat(blame, problem.what());
    const bool late = mesh_ != nullptr && mesh_->expired();
    status = late ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
  }
  if (status.ok()) return status;
  error_ = absl::Status(
      status.code(), absl::StrCat("communicator '", options_.name, "', ", kNames[header.kind], ", rank ", options_.rank,
                                  " of ", options_.size, ": ", std::string(status.message())));
  if (mesh_ != nullptr) mesh_->close();
  return error_;
}

void GlooCommunicator::post_packet(const Header& header, int peer, uint64_t slot, Bytes payload) {
  std::byte* const packet = outbox(peer);
  std::memcpy(packet, &header, sizeof(header));
  if (!payload.empty()) std::memcpy(packet + kHeaderBytes, payload.data(), payload.size());
  mesh_->send(*out_[peer], peer, slot, 0, kHeaderBytes + payload.size());
}

absl::Status GlooCommunicator::check_packet(const Header& mine, int peer) const {
  Header theirs;
  std::memcpy(&theirs, packets_.data() + 2 * peer * kPacketBytes, sizeof(theirs));
  if (theirs == mine) return absl::OkStatus();
  if (theirs.magic != kMagic || theirs.kind > kBarrier) {
    return absl::UnavailableError(absl::StrCat("rank ", peer, " sent what is no packet of this program"));
  }
  return absl::UnavailableError(
      absl::StrCat("the members disagree: rank ", peer, " makes ", theirs.describe(), ", this rank ", mine.describe()));
}

// One packet to and one from every peer. Inboxes take the longest packet whatever we expect, since a longer message
// than its buffer ends the process. After this, all peers are in this call.
absl::Status GlooCommunicator::exchange(Header header, const std::function<Bytes(int peer)>& payload) {
  header.sequence = collectives_++;
  for (int distance = 1; distance < options_.size; ++distance) {
    mesh_->recv(*in_[before(distance)], before(distance), kPacketSlot, 0, kPacketBytes);
  }
  for (int distance = 1; distance < options_.size; ++distance) {
    post_packet(header, after(distance), kPacketSlot, payload(after(distance)));
  }
  for (int distance = 1; distance < options_.size; ++distance) {
    mesh_->wait_recv(*in_[before(distance)], before(distance));
    if (absl::Status status = check_packet(header, before(distance)); !status.ok()) return status;
  }
  for (int distance = 1; distance < options_.size; ++distance) {
    mesh_->wait_send(*out_[after(distance)], after(distance));
  }
  return absl::OkStatus();
}

// After an exchange whose payload for every peer was that peer's share: out = own share op those in the inboxes.
void GlooCommunicator::reduce_inline(ReduceOp op, DType dtype, const std::byte* own, std::byte* out, int64_t elements) {
  std::vector<const std::byte*> shares;
  for (int member = 0; member < options_.size; ++member) {
    shares.push_back(member == options_.rank ? own : inbox(member) + kHeaderBytes);
  }
  reduce_parts(op, dtype, shares, out, elements);
}

// Sends part p of x to member p, and reduces this rank's part of everyone's x into `out`, chunk by chunk with the next
// chunk on its way. Members are agreed on `parts`.
void GlooCommunicator::reduce_parts_of_all(ReduceOp op, const Parts& parts, const std::byte* x, std::byte* out) {
  const int members = options_.size, rank = options_.rank;
  if (staging_.empty()) {
    staging_.resize(2 * members * kChunkBytes);
    for (int i = 0; i < 2 * members; ++i) chunks_.push_back(mesh_->wrap(&staging_[i * kChunkBytes], kChunkBytes));
  }
  const int64_t step = static_cast<int64_t>(kChunkBytes / parts.width());
  const int64_t mine = parts.count(rank);
  const auto post_receives = [&](int64_t first) {
    if (first >= mine) return;
    const size_t bytes = std::min(step, mine - first) * parts.width();
    for (int distance = 1; distance < members; ++distance) {
      const int peer = before(distance);
      mesh_->recv(*chunks_[first / step % 2 * members + peer], peer, kDataSlot, 0, bytes);
    }
  };
  post_receives(0);
  post_receives(step);

  std::vector<GlooMesh::Buffer> sources(members);
  for (int peer = 0; peer < members; ++peer) {
    if (peer != rank) sources[peer] = mesh_->wrap(x + parts.offset(peer), parts.bytes(peer));
  }
  for (int64_t first = 0; first < parts.count(0); first += step) {  // Member 0 has no smaller part than any other.
    for (int distance = 1; distance < members; ++distance) {
      const int peer = after(distance);
      if (first >= parts.count(peer)) continue;
      const size_t bytes = std::min(step, parts.count(peer) - first) * parts.width();
      mesh_->send(*sources[peer], peer, kDataSlot, first * parts.width(), bytes);
    }
  }

  std::vector<const std::byte*> shares(members);
  for (int64_t first = 0; first < mine; first += step) {
    const int64_t half = first / step % 2 * members;
    for (int distance = 1; distance < members; ++distance) {
      mesh_->wait_recv(*chunks_[half + before(distance)], before(distance));
    }
    for (int member = 0; member < members; ++member) shares[member] = &staging_[(half + member) * kChunkBytes];
    shares[rank] = x + parts.offset(rank) + first * parts.width();
    reduce_parts(op, parts.dtype, shares, out + first * parts.width(), std::min(step, mine - first));
    post_receives(first + 2 * step);
  }
  for (int peer = 0; peer < members; ++peer) {
    if (peer == rank) continue;
    for (int64_t first = 0; first < parts.count(peer); first += step) mesh_->wait_send(*sources[peer], peer);
  }
}

// Sends this rank's part of y to everyone, and receives theirs in place. Members are agreed on `parts`.
void GlooCommunicator::gather_parts(const Parts& parts, std::byte* y) {
  const int members = options_.size, rank = options_.rank;
  std::vector<GlooMesh::Buffer> targets(members), sources(members);
  for (int distance = 1; distance < members; ++distance) {
    const int peer = before(distance);
    if (parts.count(peer) == 0) continue;
    targets[peer] = mesh_->wrap(y + parts.offset(peer), parts.bytes(peer));
    mesh_->recv(*targets[peer], peer, kDataSlot);
  }
  for (int distance = 1; distance < members && parts.count(rank) > 0; ++distance) {
    const int peer = after(distance);
    sources[peer] = mesh_->wrap(y + parts.offset(rank), parts.bytes(rank));
    mesh_->send(*sources[peer], peer, kDataSlot);
  }
  for (int distance = 1; distance < members; ++distance) {
    if (targets[before(distance)]) mesh_->wait_recv(*targets[before(distance)], before(distance));
  }
  for (int distance = 1; distance < members; ++distance) {
    if (sources[after(distance)]) mesh_->wait_send(*sources[after(distance)], after(distance));
  }
}

namespace {

absl::Status check_reducible(DType dtype) {
  if (can_reduce(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("x: dtype ", std::string(name_of(dtype)), ", wanted f32, bf16, f16 or i32"));
}

// `whole` must hold `members` times what `part` does.
absl::Status check_whole(const char* name, const View& whole, const View& part, int members) {
  if (whole.dtype != part.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("x and y: dtypes ", std::string(name_of(whole.dtype)), " and ",
                                                   std::string(name_of(part.dtype)), " differ"));
  }
  if (whole.elements() != part.elements() * members) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", whole.elements(), " elements, wanted ", members, " * ", part.elements()));
  }
  return absl::OkStatus();
}

absl::Status check_member(const char* name, int member, int members) {
  if (member >= 0 && member < members) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", member, " is not in [0, ", members, ")"));
}

}  // namespace

absl::Status GlooCommunicator::all_reduce(Stream&, ReduceOp op, InOut x) {
  const Header header{.kind = kAllReduce,
                      .reduce = static_cast<uint8_t>(op),
                      .dtype = x.dtype,
                      .size = size(),
                      .elements = x.elements()};
  return run(header, [&] {
    absl::Status status = check_reducible(x.dtype);
    if (!status.ok() || mesh_ == nullptr) return status;
    const bool fits = x.bytes() <= kInlineBytes;
    status = exchange(header, [&](int) { return fits ? Bytes(x.data, x.bytes()) : Bytes(); });
    if (!status.ok()) return status;
    if (fits) {
      reduce_inline(op, x.dtype, x.data, x.data, x.elements());
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
    const bool fits = x.bytes() <= kInlineBytes;
    if (mesh_ != nullptr) {
      status = exchange(header, [&](int) { return fits ? Bytes(x.data, x.bytes()) : Bytes(); });
      if (!status.ok()) return status;
    }
    if (x.bytes() > 0) std::memmove(y.data + parts.offset(rank()), x.data, x.bytes());
    if (mesh_ == nullptr || x.bytes() == 0) return status;
    if (!fits) {
      gather_parts(parts, y.data);
      return status;
    }
    for (int distance = 1; distance < size(); ++distance) {
      const int peer = before(distance);
      std::memcpy(y.data + parts.offset(peer), inbox(peer) + kHeaderBytes, parts.bytes(peer));
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
    if (mesh_ == nullptr) {
      if (x.bytes() > 0) std::memmove(y.data, x.data, x.bytes());
      return status;
    }
    const Parts parts{x.dtype, x.elements(), size()};
    const bool fits = y.bytes() <= kInlineBytes;
    status = exchange(header,
                      [&](int peer) { return fits ? Bytes(x.data + parts.offset(peer), parts.bytes(peer)) : Bytes(); });
    if (!status.ok()) return status;
    if (fits) {
      reduce_inline(op, x.dtype, x.data + parts.offset(rank()), y.data, y.elements());
    } else {
      reduce_parts_of_all(op, parts, x.data, y.data);
    }
    return status;
  });
}

absl::Status GlooCommunicator::broadcast(Stream&, int root, InOut x) {
  const Header header{.kind = kBroadcast, .dtype = x.dtype, .size = size(), .root = root, .elements = x.elements()};
  return run(header, [&] {
    absl::Status status = check_member("root", root, size());
    if (!status.ok() || mesh_ == nullptr) return status;
    const bool fits = x.bytes() <= kInlineBytes, is_root = rank() == root;
    status = exchange(header, [&](int) { return fits && is_root ? Bytes(x.data, x.bytes()) : Bytes(); });
    if (!status.ok() || x.bytes() == 0) return status;
    if (fits) {
      if (!is_root) std::memcpy(x.data, inbox(root) + kHeaderBytes, x.bytes());
      return status;
    }
    if (!is_root) {
      const GlooMesh::Buffer target = mesh_->wrap(x.data, x.bytes());
      mesh_->recv(*target, root, kDataSlot);
      mesh_->wait_recv(*target, root);
      return status;
    }
    std::vector<GlooMesh::Buffer> sources(size());
    for (int distance = 1; distance < size(); ++distance) {
      sources[after(distance)] = mesh_->wrap(x.data, x.bytes());
      mesh_->send(*sources[after(distance)], after(distance), kDataSlot);
    }
    for (int distance = 1; distance < size(); ++distance) mesh_->wait_send(*sources[after(distance)], after(distance));
    return status;
  });
}

absl::Status GlooCommunicator::send(Stream&, int peer, In x) {
  Header header{.kind = kPointToPoint, .dtype = x.dtype, .size = size(), .elements = x.elements()};
  return run(header, [&] {
    if (absl::Status status = check_member("peer", peer, size()); !status.ok()) return status;
    if (peer == rank()) return absl::InvalidArgumentError(absl::StrCat("peer: ", peer, " is this rank"));
    header.sequence = sent_[peer]++;
    const bool fits = x.bytes() <= kInlineBytes;
    post_packet(header, peer, kPeerPacketSlot, fits ? Bytes(x.data, x.bytes()) : Bytes());
    mesh_->wait_send(*out_[peer], peer);
    if (!fits) {
      const GlooMesh::Buffer source = mesh_->wrap(x.data, x.bytes());
      mesh_->send(*source, peer, kPeerDataSlot);
      mesh_->wait_send(*source, peer);
    }
    return absl::OkStatus();
  });
}

absl::Status GlooCommunicator::recv(Stream&, int peer, Out y) {
  Header header{.kind = kPointToPoint, .dtype = y.dtype, .size = size(), .elements = y.elements()};
  return run(header, [&] {
    if (absl::Status status = check_member("peer", peer, size()); !status.ok()) return status;
    if (peer == rank()) return absl::InvalidArgumentError(absl::StrCat("peer: ", peer, " is this rank"));
    header.sequence = received_[peer]++;
    mesh_->recv(*in_[peer], peer, kPeerPacketSlot, 0, kPacketBytes);
    mesh_->wait_recv(*in_[peer], peer);
    if (absl::Status status = check_packet(header, peer); !status.ok()) return status;
    if (y.bytes() > kInlineBytes) {
      const GlooMesh::Buffer target = mesh_->wrap(y.data, y.bytes());
      mesh_->recv(*target, peer, kPeerDataSlot);
      mesh_->wait_recv(*target, peer);
    } else if (y.bytes() > 0) {
      std::memcpy(y.data, inbox(peer) + kHeaderBytes, y.bytes());
    }
    return absl::OkStatus();
  });
}

absl::Status GlooCommunicator::barrier() {
  const Header header{.kind = kBarrier, .size = size()};
  return run(header, [&] {
    if (mesh_ == nullptr) return absl::OkStatus();
    return exchange(header, [](int) { return Bytes(); });
  });
}

absl::StatusOr<std::unique_ptr<Communicator>> create_gloo_communicator(KeyValueStore& store,
                                                                       const CommunicatorOptions& options) {
  absl::StatusOr<std::unique_ptr<GlooMesh>> mesh = GlooMesh::connect(store, options);
  if (!mesh.ok()) return mesh.status();
  return std::unique_ptr<Communicator>(std::make_unique<GlooCommunicator>(options, *std::move(mesh)));
}

}  // namespace telar::backend::cpu
