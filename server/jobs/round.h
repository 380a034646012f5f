// One round of the scheduler: who starts and where, who has to make room, for whom devices are kept. Pure and
// deterministic: it changes nothing and asks nobody, not even the clock. docs/scheduling.md tells the rules.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/cluster/inventory.h"
#include "server/jobs/queue.h"

namespace telar::server::jobs {

// A job that has devices.
struct Holder {
  std::string id;
  uint64_t order = 0;
  std::string queue;
  int32_t priority = 0;
  bool preemptible = false;         // And may be told to save now: it is STARTING or RUNNING.
  bool ending = false;              // Its processes are being ended.
  Clock::Wall placed;               // Since when.
  std::optional<Clock::Wall> ends;  // When its time limit is reached, if all of it runs until then.
  std::string array;
  std::vector<uint32_t> devices;  // Numbers in the inventory; those of nodes that are not there are missing.
  uint32_t held = 0;              // All of them.
};

struct RoundInput {
  Clock::Wall now;
  // For how long a job whose start nobody can tell lets others pass; then what becomes free is kept for it.
  std::chrono::milliseconds patience{300'000};
  size_t most_starts = SIZE_MAX;
  const cluster::Inventory* inventory = nullptr;
  const std::vector<QueueConfig>* queues = nullptr;
  const Line* line = nullptr;
  const std::vector<Holder>* holders = nullptr;
  const std::set<uint64_t>* held_back = nullptr;    // Orders of jobs whose dependencies do not hold yet.
  const std::set<uint64_t>* backing_off = nullptr;  // Orders of jobs that wait for their retry_time.
};

struct Start {
  uint64_t order = 0;
  std::string id;
  std::vector<uint32_t> devices;  // Number r is rank r's.
};

struct Preemption {
  std::string victim;  // Job ids.
  std::string by;
};

// Devices that are kept for a job that comes before others.
struct Reservation {
  uint64_t order = 0;
  std::string id;
  std::optional<Clock::Wall> start;  // If running jobs end when they say; absent: what becomes free is collected.
  uint32_t devices = 0;              // That are free now and kept.
};

// Why a job does not start.
struct Refusal {
  v1::Waiting::Reason reason = v1::Waiting::DEVICES;  // DEVICES: because of room; waiting.h tells of which kind.
  bool never = false;
  int reservation = -1;  // Its own.
  uint64_t behind = 0;   // QUOTA: order of the job that the rest of the quota is kept for.
};

// Whom a device belongs to behind the round.
inline constexpr int kFree = -1;
inline constexpr int kHeld = -2;
inline constexpr int kClosed = -3;  // Nobody gets it.

struct RoundResult {
  std::vector<Start> starts;
  std::vector<Preemption> preemptions;
  std::vector<Reservation> reservations;
  std::unordered_map<uint64_t, Refusal> refusals;  // Order -> of each job that was looked at and does not start.
  std::vector<int> owner;  // Of each device: one of the above, or the number of the reservation that keeps it.
  std::unordered_map<std::string, uint32_t> held;  // Queue -> devices, with the starts.
};

RoundResult plan_round(const RoundInput& input);

// The configuration of a queue; one that is not configured (any more) has the default of each field.
QueueConfig config_of(const std::vector<QueueConfig>& queues, const std::string& name);

// Whether a node is one that the request may have devices of.
bool allows(const Request& request, const cluster::Inventory::Node& node);

// Counts devices by NVLink domain, and how many units of a shape they hold.
class FitCounter {
 public:
  FitCounter(uint32_t domains, const cluster::GangShape& shape)
      : counts_(domains), unit_(shape.unit()), wanted_(shape.world() / shape.unit()) {}
  void add(uint32_t domain) { groups_ += ++counts_[domain] % unit_ == 0 ? 1 : 0; }
  void remove(uint32_t domain) { groups_ -= counts_[domain]-- % unit_ == 0 ? 1 : 0; }
  bool fits() const { return groups_ >= wanted_; }
  uint64_t groups() const { return groups_; }

 private:
  std::vector<uint32_t> counts_;
  const uint32_t unit_;
  const uint64_t wanted_;
  uint64_t groups_ = 0;
};

}  // namespace telar::server::jobs
