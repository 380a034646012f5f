// The jobs that wait: what each of them wants, in which queue it stands, and who is before whom there. Knows no device.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "server/cluster/placement.h"
#include "server/jobs/record.pb.h"

namespace telar::server::jobs {

struct QueueConfig {
  std::string name;
  double weight = 1;           // Of queues of the same priority: its share of the devices where others want them, too.
  uint32_t quota_devices = 0;  // Never more than that at once; 0: no limit.
  int32_t priority = 0;        // Queues with a higher one come first, whatever they hold.
  bool preempt = false;        // Its jobs may end those of lower queues, and of lower priority in itself.
};

inline constexpr const char* kDefaultQueue = "default";
// Records of before there were queues name none.
inline std::string queue_of(const v1::SchedulingSpec& wishes) {
  return wishes.queue().empty() ? kDefaultQueue : wishes.queue();
}

// What a job wants of the cluster. Jobs that want the same share one.
struct Request {
  v1::ResourceSpec::Kind kind = v1::ResourceSpec::KIND_UNSPECIFIED;
  std::vector<cluster::GangShape> shapes;  // Any of them will do, the first that fits is taken; smallest last.
  std::map<std::string, std::string> labels;
  std::set<std::string> excluded;  // Nodes.
  std::set<std::string> avoided;   // Nodes, too: only where it does not go without.
  bool spares = false;             // It lost a node: spare ones are for it, too.

  uint32_t devices() const { return shapes.front().world(); }
  uint32_t least_devices() const { return shapes.back().world(); }
  // Equal for equal restrictions to nodes.
  std::string nodes_key() const;
  std::string key() const;  // Equal for equal requests.
};
Request request_of(const JobRecord& record);

// Of a job that is QUEUED.
struct Waiter {
  uint64_t order = 0;  // As in the record: the oldest submit first.
  std::string id;
  std::string queue;
  int32_t priority = 0;
  size_t request = 0;       // Number in Line.
  Clock::Wall queued;       // Since when.
  Clock::Wall not_before;   // Backs off until then; the epoch of the clock: no.
  double seconds_left = 0;  // Of its time limit; 0: it has none.
  std::string array;        // Job name of its task 0; empty: of none.
  uint32_t array_most = 0;  // Tasks of that which may run at once; 0: all.
  bool depends = false;     // On other jobs.
};

// Not thread-safe. A pointer to a waiter is good until that job is put or removed.
class Line {
 public:
  using Place = std::pair<int64_t, uint64_t>;  // Negative priority and order: smallest first.
  using Queue = std::map<Place, Waiter>;

  // Adds a QUEUED job, or brings it up to date.
  void put(const JobRecord& record);
  void remove(uint64_t order);
  const Waiter* find(uint64_t order) const;

  size_t size() const { return places_.size(); }
  uint64_t version() const { return version_; }                           // Grows with every change.
  const std::map<std::string, Queue>& queues() const { return queues_; }  // By name; none is empty.
  const Request& request(size_t number) const { return requests_[number].request; }
  size_t requests() const { return requests_.size(); }                // Numbers are below this; some may be unused.
  const std::set<uint64_t>& depending() const { return depending_; }  // Orders of those that depend on others.

 private:
  struct Shared {
    Request request;
    std::string key;
    size_t users = 0;
  };
  size_t share(const JobRecord& record);

  uint64_t version_ = 1;
  std::map<std::string, Queue> queues_;
  std::unordered_map<uint64_t, std::pair<std::string, Place>> places_;  // Order -> queue and place.
  std::set<uint64_t> depending_;
  std::vector<Shared> requests_;
  std::unordered_map<std::string, size_t> numbers_;  // Key -> number.
  std::vector<size_t> unused_;                       // Numbers.
};

}  // namespace telar::server::jobs
