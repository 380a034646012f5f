#include "worker/engine/digest.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace telar::engine {
namespace {

// FNV-1a over the bytes of each word, lowest first.
class Hash {
 public:
  void add(uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) value_ = (value_ ^ ((word >> (8 * byte)) & 0xff)) * 0x100000001b3u;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

void add_call(Hash& hash, const CommCall& call) {
  hash.add(static_cast<uint64_t>(call.kind));
  hash.add(call.kind == CommKind::kBroadcast ? static_cast<uint64_t>(call.peer) : 0);
  hash.add(static_cast<uint64_t>(call.reduce));
  hash.add(call.elements);
  hash.add(static_cast<uint64_t>(call.dtype));
}

absl::Status parse(absl::string_view text, CommDigest& digest) {
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    uint64_t value = 0;
    if (!absl::SimpleHexAtoi(word, &value)) return absl::InternalError(absl::StrCat("'", text, "' is no digest"));
    digest.peers.push_back(value);
  }
  if (digest.peers.size() < 2) return absl::InternalError(absl::StrCat("'", text, "' is no digest"));
  digest.calls = digest.peers[0];
  digest.collectives = digest.peers[1];
  digest.peers.erase(digest.peers.begin(), digest.peers.begin() + 2);
  return absl::OkStatus();
}

}  // namespace

std::string CommDigest::to_string() const {
  const auto hex = [](std::string* out, uint64_t value) { absl::StrAppend(out, absl::Hex(value)); };
  std::string text = absl::StrCat(absl::Hex(calls), ",", absl::Hex(collectives));
  if (!peers.empty()) absl::StrAppend(&text, ",", absl::StrJoin(peers, ",", hex));
  return text;
}

CommDigest digest(const Program& program, GroupId group, int rank, int size) {
  CommDigest result;
  Hash collectives;
  std::vector<Hash> peers(static_cast<size_t>(size));
  uint64_t collectives_before = 0;
  for (const Op& op : program.ops()) {
    if (!op.comm || op.comm->group != group) continue;
    const CommCall& call = *op.comm;
    ++result.calls;
    if (!call.point_to_point()) {
      ++collectives_before;
      add_call(collectives, call);
      continue;
    }
    const auto add_message = [&](int peer, int sender) {
      if (peer < 0 || peer >= size) return;  // Fails when it is called.
      Hash& hash = peers[static_cast<size_t>(peer)];
      hash.add(collectives_before);
      hash.add(static_cast<uint64_t>(sender));
      hash.add(call.elements);
      hash.add(static_cast<uint64_t>(call.dtype));
    };
    // Two with one peer in an order that both have: the lower sender's first.
    const int from = call.receives_from();
    if (call.receives() && from < rank) add_message(from, from);
    if (call.sends()) add_message(call.peer, rank);
    if (call.receives() && from >= rank) add_message(from, from);
  }
  result.collectives = collectives.value();
  for (const Hash& hash : peers) result.peers.push_back(hash.value());
  return result;
}

absl::Status compare_digests(backend::KeyValueStore& store, const std::string& name, int rank, const CommDigest& digest,
                             std::chrono::milliseconds timeout) {
  const auto key = [&](size_t member) { return absl::StrCat("digest/", name, "/", member); };
  absl::Status status = store.put(key(static_cast<size_t>(rank)), digest.to_string());
  if (!status.ok()) return status;
  std::vector<std::string> keys;
  for (size_t member = 0; member < digest.peers.size(); ++member) keys.push_back(key(member));
  const absl::StatusOr<std::vector<std::string>> all = store.get(keys, timeout);
  if (!all.ok()) return all.status();
  for (size_t member = 0; member < all->size(); ++member) {
    CommDigest other;
    status = parse((*all)[member], other);
    if (!status.ok()) return status;
    const bool sizes = other.peers.size() == digest.peers.size();
    if (sizes && other.collectives == digest.collectives &&
        other.peers[static_cast<size_t>(rank)] == digest.peers[member]) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("communicator '", name, "': its members ", rank, " and ", member,
                     " would make calls that do not match (", digest.calls, " and ", other.calls,
                     " in a step): their programs were made for different layouts or by different versions"));
  }
  return absl::OkStatus();
}

}  // namespace telar::engine
