#include "server/jobs/assignments.h"

#include <algorithm>

#include "server/jobs/elastic.h"
#include "server/jobs/receipts.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {
constexpr std::chrono::milliseconds kDeviceGrace(2'000);
}

std::optional<v1::Assignment::Desired> desired(const JobRecord& record, uint32_t rank) {
  const v1::Job& job = record.job();
  if (!placed(job.state())) return std::nullopt;
  const v1::RankPlacement& place = job.placement(static_cast<int>(rank));
  if (place.state() == v1::RankPlacement::LOST) return std::nullopt;
  if (place.state() == v1::RankPlacement::EXITED) {
    // Named until its node has also said what is left of the epoch.
    const bool told = record.ranks(static_cast<int>(rank)).output_shipped() && has_receipt(record, place.node());
    if (told) return std::nullopt;
    return v1::Assignment::STOP;
  }
  return ending(job.state()) ? v1::Assignment::STOP : v1::Assignment::RUN;
}

std::chrono::milliseconds stop_grace(const JobRecord& record, std::chrono::milliseconds usual) {
  const bool device = std::any_of(record.failures().begin(), record.failures().end(), [](const Failure& failure) {
    return failure.failure_class() == v1::DEVICE;  // A process that waits for it will hear no signal.
  });
  if (device) return std::min(usual, kDeviceGrace);
  const uint32_t own = record.job().spec().checkpoint().stop_grace_seconds();
  if (own == 0) return usual;
  const bool failed = std::any_of(record.failures().begin(), record.failures().end(), [](const Failure& failure) {
    return failure.failure_class() != v1::FAILURE_CLASS_UNSPECIFIED;  // That is an interrupted one, which has saved.
  });
  const std::chrono::milliseconds wanted = std::chrono::seconds(own);
  return failed ? std::min(wanted, usual) : wanted;
}

v1::RankPlan rank_plan(const JobRecord& record, uint32_t rank, const std::string& rendezvous_address,
                       const std::string& listen_host) {
  const v1::Job& job = record.job();
  const v1::JobSpec spec = current_shape(record);
  v1::RankPlan plan;
  plan.set_job(job.name());
  plan.set_job_uid(job.uid());
  plan.set_epoch(job.epoch());
  plan.set_rank(rank);
  plan.set_world_size(static_cast<uint32_t>(job.placement_size()));
  *plan.mutable_spec() = spec;
  *plan.mutable_device() = job.placement(static_cast<int>(rank)).device();
  plan.set_threads(spec.resources().threads());  // 0: the worker knows its cores.
  plan.set_run_dir(job.run_dir());
  plan.set_rendezvous_address(rendezvous_address);
  plan.set_listen_host(listen_host);
  const std::string& node = job.placement(static_cast<int>(rank)).node();
  for (int other = 0; other < job.placement_size(); ++other) {
    if (job.placement(other).node() == node) plan.add_node_ranks(static_cast<uint32_t>(other));
  }
  return plan;
}

bool assignments_differ(const JobRecord& before, const JobRecord& after) {
  if (before.job().epoch() != after.job().epoch()) return true;
  if (before.job().placement_size() != after.job().placement_size()) return true;
  for (int rank = 0; rank < after.job().placement_size(); ++rank) {
    const auto number = static_cast<uint32_t>(rank);
    if (desired(before, number) != desired(after, number)) return true;
  }
  return false;
}

}  // namespace telar::server::jobs
