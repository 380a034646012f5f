// Why a job waits, in words and numbers, as of the last round of the scheduler.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/jobs/round.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

// What a round saw and decided.
struct RoundView {
  Clock::Wall now;                 // On the Timeline, as are all times in here.
  Clock::Wall::duration ahead{0};  // Of what people are shown.
  cluster::Inventory inventory;    // With what it gave out.
  std::vector<Holder> holders;     // As it began.
  std::vector<QueueConfig> queues;
  std::set<uint64_t> backing_off;  // Orders.
  RoundResult result;
};

// Not thread-safe: it remembers what it counted.
class Explainer {
 public:
  // `name_of` gives the full name of a job id.
  Explainer(RoundView view, std::function<std::string(const std::string&)> name_of);

  const RoundView& view() const { return view_; }
  // Of a job that the round looked at and did not start; nothing of any other. Every device of the cluster is counted
  // once. What a job waits for that has nothing to do with devices (DEPENDENCY, ARRAY, BACKOFF) has only its reason.
  std::optional<v1::Waiting> explain(const Waiter& waiter, const Request& request);

 private:
  struct Tally {
    std::map<std::string, std::pair<uint32_t, uint32_t>> devices;  // Why -> devices, nodes.
    uint32_t all = 0;                                              // Of the kind.
    uint32_t free = 0;                                             // Kept ones are among them.
    bool fits_all = false, fits_allowed = false, fits_open = false, fits_free = false;
    std::optional<Clock::Wall> earliest;
    std::vector<std::string> closed;    // Nodes that it may have, and that are not open.
    std::vector<std::string> in_front;  // Jobs that devices are kept for; then those that hold some.
    size_t kept_for = 0;                // How many of them are of the first kind.
  };
  const Tally& tally(const Waiter& waiter, const Request& request);
  Tally count(const Request& request);
  void room(const Tally& tally, const Request& request, v1::Waiting& waiting) const;
  void quota(const Waiter& waiter, const Request& request, const Refusal& refusal, v1::Waiting& waiting) const;

  const RoundView view_;
  const std::function<std::string(const std::string&)> name_of_;
  std::unordered_map<size_t, Tally> tallies_;  // By request.
};

// "needs 4 CPU devices"
std::string needs(const Request& request);

}  // namespace telar::server::jobs
