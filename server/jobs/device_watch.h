// What is known of devices beside who holds them: their faults, what is left on them, and therefore which of them are
// in quarantine. Durable through the store's settings "quarantine/<node>/<kind>/<index>".
//
// Not thread-safe: the job manager's own. Pure but for apply(): the manager stores what follows, then applies it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/cluster/quarantine.h"
#include "server/jobs/record.pb.h"
#include "server/store/store.h"
#include "telar/v1/cluster.pb.h"

namespace telar::server::jobs {

inline constexpr const char* kQuarantinePrefix = "quarantine/";

class DeviceWatch {
 public:
  // `quarantine` is kept as this knows it; it must outlive the watch.
  explicit DeviceWatch(cluster::Quarantine* quarantine) : quarantine_(quarantine) {}

  // What a former life of the coordinator stored. DATA_LOSS names the key that cannot be read.
  absl::Status load(const std::vector<store::SettingRow>& rows);

  // Something new about a device.
  struct Finding {
    v1::Device device;
    bool fails = false;   // What runs there fails with class DEVICE.
    std::string message;  // "gpu:3: xid-79 (GPU has fallen off the bus), once"
  };
  using Changes = std::map<cluster::DeviceId, DeviceRecord>;
  struct Judgement {
    Changes changes;
    std::vector<Finding> findings;
  };
  // What a heartbeat's health and receipts mean: faults that were not judged yet, what is left behind, and what has
  // gone.
  Judgement judge(const v1::HeartbeatRequest& request, Clock::Wall now) const;
  // The device of a rank whose end its node never told of.
  Changes without_receipt(const std::string& node, const v1::Device& device, const v1::Job& job, Clock::Wall now) const;
  // FAILED_PRECONDITION (STILL_THERE): its worker says that the reason still holds. No change: it is in order.
  absl::StatusOr<Changes> release(const cluster::DeviceId& device) const;

  static std::vector<store::SettingRow> rows(const Changes& changes);
  // After they were stored.
  void apply(const Changes& changes);
  // What holds right now and is not stored: whether devices are STALE or FAILED, and what is left on them.
  void follow(const v1::HeartbeatRequest& request, Clock::Wall now);

 private:
  const DeviceRecord& record_of(const cluster::DeviceId& device) const;
  void judge_faults(const v1::HeartbeatRequest& request, Clock::Wall now, Judgement& judgement) const;
  void judge_residues(const v1::HeartbeatRequest& request, Clock::Wall now, Changes& changes) const;

  cluster::Quarantine* const quarantine_;
  std::map<cluster::DeviceId, DeviceRecord> records_;
  std::map<cluster::DeviceId, std::string> present_;  // What its worker says is wrong now.
};

// "gpu:3"
std::string device_name(const v1::Device& device);

}  // namespace telar::server::jobs
