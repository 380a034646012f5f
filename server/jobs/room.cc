#include "server/jobs/room.h"

#include <algorithm>
#include <tuple>

#include "server/cluster/times.h"

namespace telar::server::jobs {

using cluster::Inventory;

bool allows(const Request& request, const Inventory::Node& node) {
  if (request.excluded.count(node.name) != 0 || (node.spare && !request.spares)) return false;
  return std::all_of(request.labels.begin(), request.labels.end(), [&](const auto& wanted) {
    const auto label = node.labels.find(wanted.first);
    return label != node.labels.end() && label->second == wanted.second;
  });
}

Room::Room(const RoundInput& input)
    : input_(input),
      inventory_(*input.inventory),
      holders_(*input.holders),
      owner_(inventory_.devices.size(), kFree),
      claimed_(inventory_.devices.size()),
      free_(v1::ResourceSpec::Kind_ARRAYSIZE) {
  for (size_t i = 0; i < owner_.size(); ++i) {
    const Inventory::Device& device = inventory_.devices[i];
    const Inventory::Node& node = inventory_.nodes[device.node];
    if (!node.ready || !node.open || device.quarantined) {
      owner_[i] = kClosed;
    } else if (!device.holder.empty()) {
      owner_[i] = kHeld;
    } else {
      ++free_[device.kind];
    }
  }
}

const Room::Filter& Room::filter(const Request& request) {
  const auto [found, fresh] = filters_.try_emplace(request.nodes_key());
  if (fresh) {
    for (const Inventory::Node& node : inventory_.nodes) found->second.push_back(allows(request, node));
  }
  return found->second;
}

template <typename May>
std::vector<cluster::FreeNode> Room::list(const Request& request, const Filter& nodes, const May& may) const {
  std::vector<cluster::FreeNode> free;
  for (const Inventory::Node& node : inventory_.nodes) {
    cluster::FreeNode one;
    for (uint32_t device = node.first; device < node.first + node.count; ++device) {
      if (usable(request, nodes, device) && may(device))
        one.devices.push_back({device, inventory_.devices[device].domain});
    }
    if (one.devices.empty()) continue;
    std::stable_sort(one.devices.begin(), one.devices.end(),
                     [](const cluster::FreeDevice& a, const cluster::FreeDevice& b) { return a.domain < b.domain; });
    one.node = node.name;
    const auto rack = node.labels.find(cluster::kRackLabel);
    if (rack != node.labels.end()) one.rack = rack->second;
    free.push_back(std::move(one));
  }
  return free;
}

template <typename May>
std::optional<std::vector<uint32_t>> Room::place(const Request& request, uint32_t most, const May& may) {
  const Filter& nodes = filter(request);
  for (const cluster::GangShape& shape : request.shapes) {
    if (shape.world() > most) continue;
    for (const auto& [avoided, spares] : {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
      if ((spares && !request.spares) || (avoided && request.avoided.empty())) continue;
      const auto may_here = [&, avoided = avoided, spares = spares](uint32_t device) {
        const Inventory::Node& node = inventory_.nodes[inventory_.devices[device].node];
        if (node.spare && !spares) return false;
        return (avoided || request.avoided.empty() || request.avoided.count(node.name) == 0) && may(device);
      };
      FitCounter counter(inventory_.domains, shape);
      for (uint32_t device = 0; device < owner_.size() && !counter.fits(); ++device) {
        if (usable(request, nodes, device) && may_here(device)) counter.add(inventory_.devices[device].domain);
      }
      if (!counter.fits()) continue;
      if (auto slots = cluster::place(list(request, nodes, may_here), shape)) return slots;
    }
  }
  return std::nullopt;
}

bool Room::possible(const Request& request) {
  const Filter& nodes = filter(request);
  FitCounter counter(inventory_.domains, request.shapes.back());
  for (uint32_t device = 0; device < owner_.size() && !counter.fits(); ++device) {
    if (usable(request, nodes, device)) counter.add(inventory_.devices[device].domain);
  }
  return counter.fits();
}

std::optional<std::vector<uint32_t>> Room::find(const Request& request, double seconds_left, uint32_t most) {
  if (seconds_left > 0) {
    const Clock::Wall end = cluster::after(input_.now, seconds_left);
    return place(request, most, [&](uint32_t device) {
      const int owner = owner_[device];
      if (owner < 0) return owner == kFree;
      const auto& start = reservations_[static_cast<size_t>(owner)].start;
      return start.has_value() && end <= *start;
    });
  }
  if (free_[request.kind] < request.least_devices()) return std::nullopt;
  return place(request, most, [&](uint32_t device) { return owner_[device] == kFree; });
}

void Room::take(const Holder& job) {
  for (const uint32_t device : job.devices) {
    if (owner_[device] == kFree) --free_[inventory_.devices[device].kind];
    if (owner_[device] >= 0) --reservations_[static_cast<size_t>(owner_[device])].devices;
    if (owner_[device] >= 0) claimed_[device] = true;  // It is back before that job starts.
    owner_[device] = kHeld;
  }
  holders_.push_back(job);
  ends_sorted_ = false;
}

void Room::sort_ends() {
  if (ends_sorted_) return;
  by_end_.clear();
  for (size_t i = 0; i < holders_.size(); ++i) {
    if (holders_[i].ends) by_end_.push_back(i);
  }
  std::stable_sort(by_end_.begin(), by_end_.end(),
                   [&](size_t a, size_t b) { return *holders_[a].ends < *holders_[b].ends; });
  ends_sorted_ = true;
}

std::optional<Clock::Wall> Room::start_of(const Request& request) {
  sort_ends();
  const Filter& nodes = filter(request);
  FitCounter counter(inventory_.domains, request.shapes.back());
  for (uint32_t device = 0; device < owner_.size(); ++device) {
    if (owner_[device] == kFree && usable(request, nodes, device)) counter.add(inventory_.devices[device].domain);
  }
  Clock::Wall when = input_.now;
  for (const size_t number : by_end_) {
    if (counter.fits()) break;
    when = std::max(when, *holders_[number].ends);
    for (const uint32_t device : holders_[number].devices) {
      if (!claimed_[device] && usable(request, nodes, device)) counter.add(inventory_.devices[device].domain);
    }
  }
  if (!counter.fits()) return std::nullopt;
  return when;
}

void Room::keep(const Waiter& waiter, std::optional<Clock::Wall> start, const std::vector<uint32_t>& devices) {
  const int number = static_cast<int>(reservations_.size());
  Reservation reservation{waiter.order, waiter.id, start, 0};
  for (const uint32_t device : devices) {
    if (owner_[device] == kFree) {
      --free_[inventory_.devices[device].kind];
      owner_[device] = number;
      ++reservation.devices;
    } else {
      claimed_[device] = true;
    }
  }
  reservations_.push_back(std::move(reservation));
}

void Room::reserve(const Waiter& waiter, const Request& request, Clock::Wall start) {
  std::vector<bool> back(owner_.size());
  for (const size_t number : by_end_) {
    if (*holders_[number].ends > start) break;
    for (const uint32_t device : holders_[number].devices) back[device] = !claimed_[device];
  }
  Request least = request;
  least.shapes = {request.shapes.back()};
  const auto devices =
      place(least, UINT32_MAX, [&](uint32_t device) { return owner_[device] == kFree || back[device]; });
  if (devices) keep(waiter, start, *devices);
}

bool Room::collect(const Waiter& waiter, const Request& request) {
  const cluster::GangShape& shape = request.shapes.back();
  const Filter& nodes = filter(request);
  std::vector<uint32_t> all(inventory_.domains), free(inventory_.domains);
  for (uint32_t device = 0; device < owner_.size(); ++device) {
    if (!usable(request, nodes, device) || owner_[device] >= 0 || claimed_[device]) continue;
    ++all[inventory_.devices[device].domain];
    if (owner_[device] == kFree) ++free[inventory_.devices[device].domain];
  }
  // What each unit of the gang would still lack, and in which domain it would be.
  const uint32_t unit = shape.unit();
  std::vector<std::pair<uint32_t, uint32_t>> units;
  for (uint32_t domain = 0; domain < all.size(); ++domain) {
    uint32_t left = free[domain];
    for (uint32_t begun = unit; begun <= all[domain]; begun += unit) {
      const uint32_t has = std::min(left, unit);
      units.push_back({unit - has, domain});
      left -= has;
    }
  }
  const size_t wanted = shape.world() / unit;
  if (units.size() < wanted) return false;
  std::stable_sort(units.begin(), units.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<uint32_t> share(inventory_.domains);
  for (size_t i = 0; i < wanted; ++i) share[units[i].second] += unit;
  std::vector<uint32_t> devices;
  for (uint32_t device = 0; device < owner_.size(); ++device) {
    uint32_t& open = share[inventory_.devices[device].domain];
    if (open == 0 || owner_[device] != kFree || !usable(request, nodes, device)) continue;
    devices.push_back(device);
    --open;
  }
  keep(waiter, std::nullopt, devices);
  return true;
}

std::vector<size_t> Room::choose(FitCounter counter, const Request& request, std::vector<size_t> candidates) {
  const Filter& nodes = filter(request);
  const auto change = [&](size_t number, void (FitCounter::*how)(uint32_t)) {
    for (const uint32_t device : holders_[number].devices) {
      if (!claimed_[device] && usable(request, nodes, device)) (counter.*how)(inventory_.devices[device].domain);
    }
  };
  std::vector<size_t> chosen;
  for (const size_t number : candidates) {
    change(number, &FitCounter::add);
    chosen.push_back(number);
    if (counter.fits()) break;
  }
  if (!counter.fits()) return {};
  // Whoever is not needed stays; the highest is asked first.
  for (size_t i = chosen.size(); i-- > 0;) {
    change(chosen[i], &FitCounter::remove);
    if (counter.fits()) {
      chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      change(chosen[i], &FitCounter::add);
    }
  }
  return chosen;
}

std::vector<size_t> Room::make_room(const Request& request, const std::function<bool(const Holder&)>& may_go) {
  const Filter& nodes = filter(request);
  FitCounter counter(inventory_.domains, request.shapes.back());
  for (uint32_t device = 0; device < owner_.size(); ++device) {
    if (owner_[device] == kFree && usable(request, nodes, device)) counter.add(inventory_.devices[device].domain);
  }
  std::vector<size_t> candidates;
  std::vector<uint32_t> useful(holders_.size());
  for (size_t i = 0; i < holders_.size(); ++i) {
    for (const uint32_t device : holders_[i].devices) {
      if (claimed_[device] || !usable(request, nodes, device)) continue;
      if (holders_[i].ending) counter.add(inventory_.devices[device].domain);
      ++useful[i];
    }
    if (useful[i] > 0 && !holders_[i].ending && may_go(holders_[i])) candidates.push_back(i);
  }
  if (counter.fits() || candidates.empty()) return {};
  const auto config = [&](size_t i) { return config_of(*input_.queues, holders_[i].queue).priority; };
  std::vector<std::tuple<int64_t, int64_t, Clock::Wall::duration, size_t>> ranked;
  for (const size_t i : candidates) {
    ranked.push_back(
        {config(i), holders_[i].priority, Clock::Wall::duration::max() - holders_[i].placed.time_since_epoch(), i});
  }
  std::sort(ranked.begin(), ranked.end());
  for (size_t i = 0; i < ranked.size(); ++i) candidates[i] = std::get<3>(ranked[i]);

  for (const size_t alone : candidates) {  // One that is enough by itself.
    std::vector<size_t> one = choose(counter, request, {alone});
    if (one.empty()) continue;
    holders_[alone].ending = true;
    holders_[alone].ends = input_.now;
    ends_sorted_ = false;
    return one;
  }
  std::vector<size_t> chosen = choose(counter, request, candidates);
  std::stable_sort(candidates.begin(), candidates.end(), [&](size_t a, size_t b) { return useful[a] > useful[b]; });
  std::vector<size_t> largest = choose(counter, request, candidates);
  if (largest.size() < chosen.size()) chosen = std::move(largest);
  for (const size_t number : chosen) {
    holders_[number].ending = true;
    holders_[number].ends = input_.now;
  }
  ends_sorted_ = false;
  return chosen;
}

}  // namespace telar::server::jobs
