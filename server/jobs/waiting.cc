#include "server/jobs/waiting.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/times.h"
#include "server/jobs/admission.h"
#include "server/jobs/room.h"

namespace telar::server::jobs {
namespace {

using cluster::Inventory;
using v1::Waiting;

constexpr size_t kMostNames = 5;

std::string counted(uint32_t devices, v1::ResourceSpec::Kind kind) {
  return absl::StrCat(devices, " ", kind_name(kind), devices == 1 ? " device" : " devices");
}

// "1 more CPU device"
std::string more(uint32_t devices, v1::ResourceSpec::Kind kind) {
  return absl::StrCat(devices, " more ", kind_name(kind), devices == 1 ? " device" : " devices");
}

std::string some(const std::vector<std::string>& names) {
  const std::vector<std::string> few(names.begin(),
                                     names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNames)));
  return absl::StrCat(absl::StrJoin(few, ", "), names.size() > few.size() ? ", ..." : "");
}

// Why this device is not the request's; every device has one reason.
const char* why_not(const Request& request, const Inventory::Node& node, const Inventory::Device& device, int owner) {
  if (device.kind != request.kind) return "other-kind";
  if (!node.ready) return "lost";
  if (device.quarantined) return "quarantined";
  if (!node.open) return "cordoned";
  if (!allows(request, node)) return "excluded";
  if (owner == kHeld) return "held";
  return owner >= 0 ? "reserved" : "free";
}

// "needs 4 CPU devices; 1 free of 8 (2 on nodes that do not answer, 1 cordoned)"
std::string numbers(const Request& request, uint32_t free, uint32_t all,
                    const std::map<std::string, std::pair<uint32_t, uint32_t>>& devices) {
  std::vector<std::string> others;
  for (const auto& [why, words] : std::map<std::string, std::string>{{"lost", "on nodes that do not answer"},
                                                                     {"cordoned", "on closed nodes"},
                                                                     {"quarantined", "quarantined"},
                                                                     {"excluded", "on nodes that are not for it"}}) {
    const auto found = devices.find(why);
    if (found != devices.end()) others.push_back(absl::StrCat(found->second.first, " ", words));
  }
  return absl::StrCat(needs(request), "; ", free, " free of ", all,
                      others.empty() ? "" : absl::StrCat(" (", absl::StrJoin(others, ", "), ")"));
}

std::string closeness(const Request& request) {
  return request.kind == v1::ResourceSpec::GPU ? "NVLink domain" : "node";
}

}  // namespace

std::string needs(const Request& request) {
  const std::string least = request.least_devices() < request.devices() ? "at least " : "";
  return absl::StrCat("needs ", least, counted(request.least_devices(), request.kind));
}

Explainer::Explainer(RoundView view, std::function<std::string(const std::string&)> name_of)
    : view_(std::move(view)), name_of_(std::move(name_of)) {}

Explainer::Tally Explainer::count(const Request& request) {
  Tally tally;
  const Inventory& inventory = view_.inventory;
  const cluster::GangShape& shape = request.shapes.back();
  FitCounter all(inventory.domains, shape), allowed(inventory.domains, shape), open(inventory.domains, shape),
      free(inventory.domains, shape);
  std::set<std::string> kept_for, holding;
  std::map<std::string, std::set<uint32_t>> nodes;
  for (uint32_t i = 0; i < inventory.devices.size(); ++i) {
    const Inventory::Device& device = inventory.devices[i];
    const Inventory::Node& node = inventory.nodes[device.node];
    const int owner = view_.result.owner[i];
    const std::string why = why_not(request, node, device, owner);
    ++tally.devices[why].first;
    nodes[why].insert(device.node);
    if (device.kind != request.kind) continue;
    ++tally.all;
    all.add(device.domain);
    if (!allows(request, node)) continue;
    allowed.add(device.domain);
    if (owner == kClosed) {
      if (tally.closed.empty() || tally.closed.back() != node.name) tally.closed.push_back(node.name);
      continue;
    }
    open.add(device.domain);
    if (owner == kHeld) {
      if (!device.holder.empty()) holding.insert(device.holder);
      continue;
    }
    ++tally.free;
    free.add(device.domain);
    if (owner >= 0) kept_for.insert(name_of_(view_.result.reservations[static_cast<size_t>(owner)].id));
  }
  for (const auto& [why, where] : nodes) tally.devices[why].second = static_cast<uint32_t>(where.size());
  tally.fits_all = all.fits();
  tally.fits_allowed = allowed.fits();
  tally.fits_open = open.fits();
  tally.fits_free = free.fits();
  tally.kept_for = kept_for.size();
  tally.in_front.assign(kept_for.begin(), kept_for.end());
  tally.in_front.insert(tally.in_front.end(), holding.begin(), holding.end());
  RoundInput input;
  input.now = view_.now;
  input.inventory = &inventory;
  input.queues = &view_.queues;
  input.holders = &view_.holders;
  tally.earliest = Room(input).start_of(request);
  return tally;
}

const Explainer::Tally& Explainer::tally(const Waiter& waiter, const Request& request) {
  const auto known = tallies_.find(waiter.request);
  if (known != tallies_.end()) return known->second;
  return tallies_.emplace(waiter.request, count(request)).first->second;
}

void Explainer::room(const Tally& tally, const Request& request, Waiting& waiting) const {
  const uint32_t wanted = request.least_devices(), tensor = request.shapes.back().unit();
  const std::string where = numbers(request, tally.free, tally.all, tally.devices);
  const std::string whole = absl::StrCat(", but not as whole tensor-parallel groups in one ", closeness(request));
  if (tally.all < wanted) {
    waiting.set_never(true);
    waiting.set_message(absl::StrCat(needs(request), "; the cluster has ", tally.all, " in all"));
    waiting.set_unblock(
        absl::StrCat(more(wanted - tally.all, request.kind), " in the cluster, or a job of at most ", tally.all));
  } else if (!tally.fits_all) {
    waiting.set_reason(Waiting::SHAPE);
    waiting.set_never(true);
    waiting.set_message(where + whole);
    waiting.set_unblock(absl::StrCat("nodes with ", tensor, " devices in one ", closeness(request),
                                     ", a smaller parallel.tensor, or parallel.tensor_across_nodes"));
  } else if (!tally.fits_allowed) {
    waiting.set_reason(Waiting::NODES);
    waiting.set_never(true);
    waiting.set_message(absl::StrCat(where,
                                     "; the nodes that scheduling.node_labels and exclude_nodes leave, and that "
                                     "are no spares, could never hold it"));
    waiting.set_unblock("labels or exclusions that leave it more nodes");
  } else if (!tally.fits_open) {
    waiting.set_reason(Waiting::NODES);
    waiting.set_message(absl::StrCat(where, "; what is open could not hold it even if it were empty"));
    waiting.set_unblock(absl::StrCat("these are open again: ", some(tally.closed)));
  } else if (tally.fits_free && tally.kept_for > 0) {
    waiting.set_reason(Waiting::PRIORITY);
    waiting.set_message(absl::StrCat(where, ", kept for jobs that come first"));
    waiting.set_unblock("the jobs in front start or end");
  } else if (tally.free >= wanted) {
    waiting.set_reason(Waiting::SHAPE);
    waiting.set_message(where + whole);
    waiting.set_unblock(absl::StrCat("groups of ", tensor, " devices in one ", closeness(request), " become free"));
  } else {
    waiting.set_message(where);
    waiting.set_unblock(absl::StrCat(more(wanted - tally.free, request.kind),
                                     wanted - tally.free == 1 ? " becomes free" : " become free"));
  }
}

void Explainer::quota(const Waiter& waiter, const Request& request, const Refusal& refusal, Waiting& waiting) const {
  const QueueConfig config = config_of(view_.queues, waiter.queue);
  const auto found = view_.result.held.find(waiter.queue);
  const uint32_t held = found == view_.result.held.end() ? 0 : found->second;
  waiting.set_never(refusal.never);
  waiting.set_message(
      absl::StrCat(needs(request), "; queue '", waiter.queue, "' may have ", config.quota_devices, " and has ", held));
  if (refusal.never) {
    waiting.set_unblock(absl::StrCat("another queue, a higher quota, or a job of at most ", config.quota_devices));
    return;
  }
  const uint32_t after = held + request.least_devices();
  waiting.set_unblock(
      after > config.quota_devices
          ? absl::StrCat("jobs of the queue give ", counted(after - config.quota_devices, request.kind), " back")
          : "an older job of the queue, which the rest of the quota is kept for, starts");
  for (const Holder& holder : view_.holders) {
    if (holder.queue == waiter.queue && waiting.behind_size() < static_cast<int>(kMostNames)) {
      waiting.add_behind(name_of_(holder.id));
    }
  }
}

std::optional<Waiting> Explainer::explain(const Waiter& waiter, const Request& request) {
  const auto found = view_.result.refusals.find(waiter.order);
  if (found == view_.result.refusals.end()) return std::nullopt;
  const Refusal& refusal = found->second;
  Waiting waiting;
  waiting.set_reason(refusal.reason);
  if (refusal.reason == Waiting::BACKOFF) {
    *waiting.mutable_earliest_start() = cluster::to_timestamp(waiter.not_before);
    waiting.set_message("backs off after its last failure");
    waiting.set_unblock("the time of its next try comes");
    return waiting;
  }
  if (refusal.reason == Waiting::ARRAY) {
    waiting.set_message(absl::StrCat("array.max_running: ", waiter.array_most,
                                     waiter.array_most == 1 ? " task of its array runs" : " tasks of its array run"));
    waiting.set_unblock("a task of the array ends");
    return waiting;
  }
  if (refusal.reason == Waiting::DEPENDENCY) return waiting;
  const Tally& counts = tally(waiter, request);
  for (const auto& [why, count] : counts.devices) {
    v1::DeviceCount* one = waiting.add_devices();
    one->set_why(why);
    one->set_devices(count.first);
    one->set_nodes(count.second);
  }
  if (refusal.reason == Waiting::QUOTA) {
    quota(waiter, request, refusal, waiting);
    return waiting;
  }
  room(counts, request, waiting);
  if (waiting.never()) return waiting;
  if (waiting.reason() != Waiting::NODES) {
    for (size_t i = 0; i < std::min(counts.in_front.size(), kMostNames); ++i) waiting.add_behind(counts.in_front[i]);
  }
  std::optional<Clock::Wall> earliest = counts.earliest;
  if (refusal.reservation >= 0) {
    earliest = view_.result.reservations[static_cast<size_t>(refusal.reservation)].start;
  }
  if (earliest && waiting.reason() != Waiting::NODES) {
    *waiting.mutable_earliest_start() = cluster::to_timestamp(*earliest - view_.ahead);
  }
  return waiting;
}

}  // namespace telar::server::jobs
