// Devices that nobody gets, beside the reason: they failed, something is left on them, or nobody can tell how they are.
//
// Not thread-safe, keeps nothing on disk: see jobs/device_watch.h, which does.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "common/clock.h"
#include "telar/v1/rank.pb.h"

namespace telar::server::cluster {

struct DeviceId {
  std::string node;
  v1::ResourceSpec::Kind kind = v1::ResourceSpec::KIND_UNSPECIFIED;
  uint32_t index = 0;
  bool operator<(const DeviceId& other) const {
    return std::tie(node, kind, index) < std::tie(other.node, other.kind, other.index);
  }
};
inline DeviceId id_of(const std::string& node, const v1::Device& device) {
  return {node, device.kind(), device.index()};
}

class Quarantine {
 public:
  struct Entry {
    std::string reason;
    Clock::Wall time;
  };

  void set(const DeviceId& device, Entry entry) {
    entries_[device] = std::move(entry);
    ++version_;
  }
  void clear(const DeviceId& device) { version_ += entries_.erase(device); }
  // Its worker cannot tell how it is, since `time`; until it can again.
  void set_stale(const DeviceId& device, bool stale, Clock::Wall time) {
    if (!stale) {
      version_ += stale_.erase(device);
    } else if (stale_
                   .try_emplace(device, Entry{"its telemetry is stale: the probe of its node does not come back", time})
                   .second) {
      ++version_;
    }
  }
  uint64_t version() const { return version_; }  // Grows with every change.
  // Null: it is in order.
  const Entry* find(const DeviceId& device) const {
    for (const auto* all : {&entries_, &stale_}) {
      if (const auto found = all->find(device); found != all->end()) return &found->second;
    }
    return nullptr;
  }

 private:
  std::map<DeviceId, Entry> entries_, stale_;
  uint64_t version_ = 0;
};

}  // namespace telar::server::cluster
