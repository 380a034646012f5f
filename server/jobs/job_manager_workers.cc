// What workers say, and what they are told.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/cluster/times.h"
#include "server/jobs/assignments.h"
#include "server/jobs/conditions.h"
#include "server/jobs/epoch.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/progress.h"
#include "server/jobs/receipts.h"
#include "server/jobs/traces.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {

constexpr size_t kMostLogData = 64 << 10;

void set_duration(google::protobuf::Duration* to, std::chrono::milliseconds value) {
  to->set_seconds(value.count() / 1000);
  to->set_nanos(static_cast<int32_t>(value.count() % 1000) * 1'000'000);
}

absl::Status stale(const std::string& job, uint64_t epoch, const std::string& why) {
  return error(absl::StatusCode::kFailedPrecondition, "STALE_EPOCH",
               absl::StrCat("job '", job, "' epoch ", epoch, ": ", why));
}

absl::Status check_registration(const v1::RegisterNodeRequest& request) {
  std::vector<Violation> found;
  if (request.node().empty()) found.push_back({"node", "must not be empty"});
  if (request.incarnation().empty()) found.push_back({"incarnation", "must not be empty"});
  std::set<std::pair<int, uint32_t>> seen;
  for (int i = 0; i < request.devices_size(); ++i) {
    const v1::Device& device = request.devices(i);
    const std::string field = absl::StrCat("devices[", i, "]");
    if (device.kind() == v1::ResourceSpec::KIND_UNSPECIFIED) found.push_back({field + ".kind", "must be CPU or GPU"});
    if (!seen.insert({device.kind(), device.index()}).second) {
      found.push_back({field + ".index", absl::StrCat(device.index(), " is there twice")});
    }
  }
  return found.empty() ? absl::OkStatus() : invalid(found);
}

void take_event(Draft& draft, uint32_t number, const v1::RankEvent& event) {
  RankRecord& rank = *draft.record().mutable_ranks(static_cast<int>(number));
  if (event.has_failure()) {
    rank.set_failure_class(event.failure().failure_class());
    rank.set_failure_message(event.failure().message());
  }
  if (event.has_finished()) {
    rank.set_interrupted(event.finished().interrupted());
    rank.set_finished(!event.finished().interrupted());
  }
  if (event.has_log_lost()) {
    rank.set_log_lost_bytes(rank.log_lost_bytes() + event.log_lost().bytes());
    set_log_gap(draft, draft.job().epoch(), number, "no room on its node's disk: ", rank.log_lost_bytes());
  }
  fold_memory(draft.record(), number, event);
  if (number == 0) fold_event(draft.record(), event);
  if (event.has_trace()) return note_trace(draft, number, event.trace());  // Of a thousand ranks; the job counts them.
  // Every rank takes the same steps; one account of them is enough.
  if (number == 0 || !event.has_step()) draft.report(number, event);
}

}  // namespace

absl::StatusOr<v1::RegisterNodeResponse> JobManager::register_node(const v1::RegisterNodeRequest& request) {
  if (absl::Status status = check_registration(request); !status.ok()) return status;
  Hold hold = take(Doing::kHeartbeat);
  const auto registration = cluster_.register_node(request);
  if (!registration.ok()) return registration.status();
  heard_.erase(request.node());
  for (auto& [id, told] : stops_) told.at.erase(request.node());
  bump_node(request.node());
  changes_.notify();
  v1::RegisterNodeResponse response;
  set_duration(response.mutable_heartbeat_interval(), options_.heartbeat_interval);
  set_duration(response.mutable_lease(), options_.lease);
  response.set_registration(*registration);
  return response;
}

void JobManager::set_connected(const std::string& node, const std::string& incarnation, bool connected) {
  Hold hold = take(Doing::kHeartbeat);
  cluster_.set_connected(node, incarnation, connected);
}

bool JobManager::has_strangers(const v1::HeartbeatRequest& request) const {
  return std::any_of(request.ranks().begin(), request.ranks().end(), [&](const v1::RankStatus& status) {
    // One that is over is none once its worker has said what is left of it.
    const bool told = std::any_of(request.receipts().begin(), request.receipts().end(), [&](const v1::Receipt& one) {
      return one.job() == status.job() && one.epoch() == status.epoch();
    });
    if (status.state() == v1::RankPlacement::EXITED && told) return false;
    return !find_open(status.job(), status.epoch(), status.rank(), request.node()).ok();
  });
}

void JobManager::observe_node(Draft& draft, const v1::HeartbeatRequest& request) {
  const std::string id = job_id(draft.job().name());
  const auto told = stops_.find(id);
  bool told_to_stop = false;
  const auto grace = stop_grace(draft.record(), options_.stop_grace);
  // Two ways to tell: the first holds over a restart of the coordinator, the second whatever happened meanwhile.
  bool grace_over =
      ending(draft.job().state()) && draft.moment() >= cluster::to_wall(draft.record().stop_time()) + grace;
  if (told != stops_.end() && told->second.epoch == draft.job().epoch()) {
    const auto at = told->second.at.find(request.node());
    told_to_stop = at != told->second.at.end();
    grace_over = grace_over || (told_to_stop && clock_->now() >= at->second + grace);
  }
  for (int rank = 0; rank < draft.job().placement_size(); ++rank) {
    if (draft.job().placement(rank).node() != request.node()) continue;
    const auto status = std::find_if(request.ranks().begin(), request.ranks().end(), [&](const v1::RankStatus& one) {
      return one.job() == draft.job().name() && one.epoch() == draft.job().epoch() &&
             one.rank() == static_cast<uint32_t>(rank);
    });
    if (status == request.ranks().end()) {
      observe_absence(draft, static_cast<uint32_t>(rank), request.leave() == v1::HeartbeatRequest::GONE);
    } else {
      observe(draft, *status, told_to_stop, grace_over);
    }
  }
  observe_receipt(draft, request);
}

absl::Status JobManager::heartbeat(const v1::HeartbeatRequest& request) {
  Hold hold = take(Doing::kHeartbeat);
  await_node(hold, request.node());
  // The lock is held from the first look at the heartbeat to the last: it tells of this state of the jobs, no later
  // one.
  const bool strangers = has_strangers(request);
  if (absl::Status status =
          cluster_.heartbeat(request.node(), request.incarnation(), strangers, request.registration());
      !status.ok()) {
    return status;
  }
  if (request.leave() != v1::HeartbeatRequest::LEAVE_UNSPECIFIED && !cluster_.leaving(request.node())) {
    cluster_.leave(request.node(), request.registration(), /*gone=*/false);
    changes_.notify();
  }
  if (heard_.insert(request.node()).second) changes_.notify();  // Its devices may be given out from now on.
  const absl::Status observed = take_in(hold, request);
  if (observed.ok() && request.leave() == v1::HeartbeatRequest::GONE) {
    spdlog::info("node {}: its worker said goodbye", request.node());
    cluster_.leave(request.node(), request.registration(), /*gone=*/true);
    changes_.notify();
  }
  return observed;
}

// What is found out about devices is stored together with what it means for the jobs there: after a crash between the
// two, one of them would never be heard of.
absl::Status JobManager::take_in(Hold& hold, const v1::HeartbeatRequest& request) {
  const DeviceWatch::Judgement judgement = devices_.judge(request, clock_->wall());
  devices_.follow(request, clock_->wall());
  Change together;
  add_devices(request.node(), judgement.changes, together);
  AllPending changes;
  absl::Status refused;
  const auto here = placed_on_.find(request.node());
  for (const std::string& id : here == placed_on_.end() ? std::set<std::string>() : here->second) {
    Draft draft = draft_of(id);
    for (const DeviceWatch::Finding& finding : judgement.findings) take_finding(request.node(), finding, draft);
    observe_node(draft, request);
    if (!draft.changed()) continue;
    if (!judgement.changes.empty()) {
      together.drafts.push_back(std::move(draft));
    } else if (auto change = begin(change_of(std::move(draft))); change.ok()) {
      changes.push_back(*std::move(change));
    } else {
      refused = change.status();
    }
  }
  hear_paces(request);
  if (!judgement.changes.empty()) {
    auto change = begin(std::move(together));
    if (!change.ok()) return change.status();
    changes.push_back(*std::move(change));
  }
  if (changes.empty()) return refused;
  const absl::Status status = finish_each(hold, changes);
  return refused.ok() ? status : refused;
}

v1::HeartbeatResponse JobManager::assignments(const std::string& node) {
  Hold hold = take(Doing::kAssign);
  v1::HeartbeatResponse response;
  response.set_version(versions_[node]);
  for (const std::string& id : placed_on_[node]) {
    const JobRecord& record = jobs_.at(id);
    for (const v1::RankPlacement& place : record.job().placement()) {
      if (place.node() != node) continue;
      const auto wanted = desired(record, place.rank());
      if (!wanted) continue;
      v1::Assignment* assignment = response.add_assignments();
      assignment->set_desired(*wanted);
      *assignment->mutable_plan() =
          rank_plan(record, place.rank(), options_.rendezvous_address, cluster_.listen_host(node));
      set_duration(assignment->mutable_grace(), stop_grace(record, options_.stop_grace));
      if (*wanted != v1::Assignment::STOP || !ending(record.job().state())) continue;
      StopTold& told = stops_[id];
      if (told.epoch != record.job().epoch()) told = StopTold{record.job().epoch(), {}};
      told.at.emplace(node, clock_->now());
    }
  }
  add_flight_wishes(node, response);
  add_trace_wishes(node, response);
  return response;
}

ChangeSignal& JobManager::assignment_changes(const std::string& node) {
  Hold hold = take(Doing::kAssign);
  std::unique_ptr<ChangeSignal>& signal = node_signals_[node];
  if (!signal) signal = std::make_unique<ChangeSignal>();
  if (changes_.over()) signal->shut_down();
  return *signal;
}

uint64_t JobManager::assignments_version(const std::string& node) const {
  Hold hold = take(Doing::kAssign);
  const auto found = versions_.find(node);
  return found == versions_.end() ? 0 : found->second;
}

absl::StatusOr<const JobRecord*> JobManager::find_open(const std::string& job, uint64_t epoch, uint32_t rank,
                                                       const std::string& node) const {
  auto record = find(job);
  if (!record.ok()) return record.status();
  const v1::Job& now = (*record)->job();
  if (now.epoch() != epoch) return stale(job, epoch, absl::StrCat("the current epoch is ", now.epoch()));
  if (!placed(now.state()))
    return stale(job, epoch, absl::StrCat("it is over; the job is ", v1::Job::State_Name(now.state())));
  if (rank >= static_cast<uint32_t>(now.placement_size())) {
    return stale(job, epoch, absl::StrCat("there is no rank ", rank, ", only ", now.placement_size()));
  }
  const v1::RankPlacement& place = now.placement(static_cast<int>(rank));
  if (place.node() != node) return stale(job, epoch, absl::StrCat("rank ", rank, " is on node '", place.node(), "'"));
  if (place.state() == v1::RankPlacement::LOST) return stale(job, epoch, absl::StrCat("rank ", rank, " was given up"));
  return record;
}

absl::StatusOr<v1::AppendLogResponse> JobManager::append_log(const v1::AppendLogRequest& request) {
  if (request.data().size() > kMostLogData) {
    return invalid({{"data", absl::StrCat(request.data().size(), " bytes; at most ", kMostLogData)}});
  }
  {
    Hold hold = take(Doing::kReport);
    auto record = find_open(request.job(), request.epoch(), request.rank(), request.node());
    if (!record.ok()) return record.status();
  }
  // Without the lock: an epoch is closed only after its worker says that all of this was accepted.
  const store::LogKey key{job_id(request.job()), request.epoch(), request.rank()};
  auto next = request.missing() > 0 ? logs_->skip(key, request.offset(), request.missing())
                                    : logs_->append(key, request.offset(), request.data());
  if (!next.ok()) return next.status();
  if (absl::Status status = note_missing_log(request); !status.ok()) return status;
  changes_.notify();
  v1::AppendLogResponse response;
  response.set_next_offset(*next);
  return response;
}

absl::StatusOr<uint64_t> JobManager::await_line(Hold& hold, const v1::ReportEventsRequest& request) {
  const std::string id = job_id(request.job());
  const std::pair<uint64_t, uint32_t> stream{request.epoch(), request.rank()};
  while (true) {
    await(hold, id);
    auto record = find_open(request.job(), request.epoch(), request.rank(), request.node());
    if (!record.ok()) return record.status();
    auto& lines = lines_[id];
    if (const auto known = lines.find(stream); known != lines.end()) return known->second;
    hold.unlock();
    const auto stored = store_->next_line(id, request.epoch(), request.rank());
    hold.lock();
    if (!stored.ok()) return stored.status();
    if (placed_.count(id) == 0) continue;
    uint64_t& line = lines_[id][stream];
    line = std::max(line, *stored);  // Another report may have been quicker.
  }
}

absl::StatusOr<v1::ReportEventsResponse> JobManager::report_events(const v1::ReportEventsRequest& request) {
  Hold hold = take(Doing::kReport);
  const auto next = await_line(hold, request);
  if (!next.ok()) return next.status();
  v1::ReportEventsResponse response;
  response.set_next_line(*next);
  const uint64_t end = request.first_line() + static_cast<uint64_t>(request.events_size());
  if (request.first_line() > *next || end <= *next) return response;  // A gap, or nothing new.

  Draft draft = draft_of(job_id(request.job()));
  for (uint64_t line = *next; line < end; ++line) {
    take_event(draft, request.rank(), request.events(static_cast<int>(line - request.first_line())));
  }
  draft.set_stream({request.epoch(), request.rank(), end});
  if (absl::Status status = commit(hold, std::move(draft)).status(); !status.ok()) return status;
  response.set_next_line(end);
  return response;
}

absl::StatusOr<const JobRecord*> JobManager::find_current(const std::string& job, uint64_t epoch) const {
  auto record = find(job);
  if (!record.ok()) return record.status();
  const v1::Job& now = (*record)->job();
  if (now.epoch() != epoch) return stale(job, epoch, absl::StrCat("the current epoch is ", now.epoch()));
  if (now.state() == v1::Job::STARTING || now.state() == v1::Job::RUNNING) return record;
  return stale(job, epoch, absl::StrCat("the job is ", v1::Job::State_Name(now.state())));
}

absl::StatusOr<const JobRecord*> JobManager::find_saving(const std::string& job, uint64_t epoch) const {
  auto record = find(job);
  if (!record.ok()) return record.status();
  const v1::Job& now = (*record)->job();
  if (now.epoch() != epoch) return stale(job, epoch, absl::StrCat("the current epoch is ", now.epoch()));
  if (!placed(now.state())) {
    return stale(job, epoch, absl::StrCat("it is over; the job is ", v1::Job::State_Name(now.state())));
  }
  const v1::RankPlacement::State leader = now.placement(0).state();
  if (leader == v1::RankPlacement::EXITED || leader == v1::RankPlacement::LOST) {
    return stale(job, epoch, absl::StrCat("its rank 0 is ", v1::RankPlacement::State_Name(leader)));
  }
  return record;
}

absl::Status JobManager::commit_checkpoint(const std::string& job, uint64_t epoch, uint64_t step) {
  Hold hold = take(Doing::kReport);
  await(hold, job_id(job));
  auto record = find_saving(job, epoch);
  if (!record.ok()) return record.status();
  if ((*record)->has_commit() && (*record)->commit_epoch() == epoch) {
    const uint64_t last = (*record)->commit_step();
    if (last == step) return absl::OkStatus();
    if (last > step) {
      return error(absl::StatusCode::kFailedPrecondition, "STALE_STEP",
                   absl::StrCat("job '", job, "' epoch ", epoch, ": step ", step, " comes after step ", last));
    }
  }
  Draft draft = draft_of(job_id(job));
  draft.record().set_has_commit(true);
  draft.record().set_commit_epoch(epoch);
  draft.record().set_commit_step(step);
  draft.touch();
  return commit(hold, std::move(draft)).status();
}

absl::StatusOr<std::optional<Commit>> JobManager::last_commit(const std::string& job, uint64_t epoch) const {
  Hold hold = take(Doing::kReport);
  auto record = find_saving(job, epoch);
  if (!record.ok()) return record.status();
  if (!(*record)->has_commit()) return std::nullopt;
  return Commit{(*record)->commit_epoch(), (*record)->commit_step()};
}

absl::Status JobManager::put_key(const std::string& job, uint64_t epoch, const std::string& key,
                                 const std::string& value) {
  Hold hold = take(Doing::kReport);
  await(hold, job_id(job));
  if (auto record = find_current(job, epoch); !record.ok()) return record.status();
  Draft draft = draft_of(job_id(job));
  (*draft.record().mutable_keys())[key] = value;
  draft.touch();
  return commit(hold, std::move(draft)).status();
}

absl::StatusOr<std::map<std::string, std::string>> JobManager::keys(const std::string& job, uint64_t epoch) const {
  Hold hold = take(Doing::kReport);
  auto record = find_current(job, epoch);
  if (!record.ok()) return record.status();
  return std::map<std::string, std::string>((*record)->keys().begin(), (*record)->keys().end());
}

}  // namespace telar::server::jobs
