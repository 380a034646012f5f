// Leases that run out, and jobs that wait for devices.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/cluster/times.h"
#include "server/jobs/admission.h"
#include "server/jobs/elastic.h"
#include "server/jobs/epoch.h"
#include "server/jobs/job_manager.h"

namespace telar::server::jobs {

void JobManager::tick() {
  std::lock_guard<std::mutex> hold(mutex_);
  expire_leases();
  const bool looked = look_after_gangs();
  place_queued();
  if (looked) grow_shrunk();  // Behind the queue: what waits comes first.
}

void JobManager::expire_leases() {
  for (const std::string& node : cluster_.expire()) spdlog::warn("node {}: its lease ran out", node);
  const std::set<std::string> ids = placed_;  // A commit may take one out.
  for (const std::string& id : ids) {
    Draft draft = draft_of(id);
    for (int rank = 0; rank < draft.job().placement_size(); ++rank) {
      if (cluster_.lost(draft.job().placement(rank).node())) lose(draft, static_cast<uint32_t>(rank));
    }
    if (!draft.changed()) continue;
    // What cannot be stored now is seen again in the next round.
    if (absl::Status status = commit(draft); !status.ok()) {
      spdlog::error("job {}: cannot record a lost node: {}", id, std::string(status.message()));
    }
  }
}

void JobManager::place_queued() {
  std::map<v1::ResourceSpec::Kind, cluster::Cluster::Count> counts;
  const auto queue = queued_;  // Placing takes them out.
  for (const auto& [order, id] : queue) {
    const v1::ResourceSpec::Kind kind = jobs_.at(id).job().spec().resources().kind();
    if (counts.count(kind) == 0) counts[kind] = cluster_.count(kind);
    if (place_one(id, counts[kind])) counts[kind] = cluster_.count(kind);
  }
}

bool JobManager::place_one(const std::string& id, const cluster::Cluster::Count& count) {
  JobRecord& record = jobs_.at(id);
  const v1::ResourceSpec& resources = record.job().spec().resources();
  if (record.job().has_retry_time() && clock_->wall() < cluster::to_wall(record.job().retry_time())) return false;
  v1::JobSpec shape;
  const std::optional<std::vector<cluster::Slot>> slots = find_place(record, count.free, shape);
  if (!slots) {
    // Not stored: it follows from the state of the cluster, anew in every round.
    record.mutable_job()->set_message(why_waiting(least_devices(record), resources.kind(), count));
    return false;
  }
  const double waited = std::chrono::duration<double>(clock_->wall() - cluster::to_wall(record.queue_time())).count();
  Draft draft = draft_of(id);
  begin_epoch(draft, *slots);
  note_shape(draft, shape);
  if (absl::Status status = commit(draft); !status.ok()) {
    spdlog::error("job {}: cannot record its placement: {}", id, std::string(status.message()));
    return false;
  }
  if (observer_ != nullptr) observer_->on_placed(waited);
  return true;
}

}  // namespace telar::server::jobs
