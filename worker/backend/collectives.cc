#include "worker/backend/collectives.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "worker/backend/device.h"

namespace telar::backend {
namespace {

absl::Status check_member(const char* name, int member, int members) {
  if (member >= 0 && member < members) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", member, " is not in [0, ", members, ")"));
}

}  // namespace

absl::Status check_reducible(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kI32) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("x: dtype ", std::string(name_of(dtype)), ", wanted f32, bf16, f16 or i32"));
}

absl::Status check_whole(const char* name, const View& whole, const View& part, int members) {
  if (whole.dtype != part.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("x and y: dtypes ", std::string(name_of(whole.dtype)), " and ",
                                                   std::string(name_of(part.dtype)), " differ"));
  }
  if (whole.elements() == part.elements() * members) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", whole.elements(), " elements, wanted ", members, " * ", part.elements()));
}

absl::Status check_root(int root, int members) { return check_member("root", root, members); }

absl::Status check_peer(int peer, int rank, int members) {
  if (absl::Status status = check_member("peer", peer, members); !status.ok()) return status;
  if (peer != rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("peer: ", peer, " is this rank"));
}

absl::Status check_groups(const GangOptions& options, std::span<const Group> groups) {
  if (options.name.empty()) return absl::InvalidArgumentError("gang: name is empty");
  std::set<std::string> names;
  for (const Group& group : groups) {
    if (group.name.empty()) return absl::InvalidArgumentError("communicator: name is empty");
    const std::string where = absl::StrCat("communicator '", group.name, "': ");
    const auto bad = [&where](const auto&... why) { return absl::InvalidArgumentError(absl::StrCat(where, why...)); };
    if (!names.insert(group.name).second) return bad("two groups have this name");
    std::set<int> members;
    for (int rank : group.ranks) {
      if (rank < 0) return bad("rank ", rank, " is negative");
      if (!members.insert(rank).second) return bad("rank ", rank, " is in it twice");
    }
    if (!members.contains(options.rank)) return bad("this rank, ", options.rank, ", is not in it");
    if (group.ranks.size() > 1 && options.listen_host.empty())
      return bad("listen_host is empty; peers need an address");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> Device::create_communicator(KeyValueStore& store,
                                                                          const CommunicatorOptions& options) {
  const GangOptions gang{options.name, options.rank, options.listen_host, options.connect_timeout,
                         options.call_timeout};
  if (options.size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("communicator '", options.name, "': size ", options.size, " is less than 1"));
  }
  Group group{options.name, {}};
  for (int rank = 0; rank < options.size; ++rank) group.ranks.push_back(rank);
  auto made = create_communicators(store, gang, std::span(&group, 1));
  if (!made.ok()) return made.status();
  return std::move(made->front());
}

}  // namespace telar::backend
