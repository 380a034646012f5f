#include "server/jobs/hang_watch.h"

#include "server/jobs/draft.h"

namespace telar::server::jobs {

HangWatch::Gang& HangWatch::gang_of(const std::string& id, uint64_t epoch) {
  Gang& gang = gangs_[id];
  if (gang.epoch != epoch) {
    gang = Gang();
    gang.epoch = epoch;
  }
  return gang;
}

const HangWatch::Gang* HangWatch::find(const std::string& id) const {
  const auto found = gangs_.find(id);
  return found == gangs_.end() ? nullptr : &found->second;
}

void HangWatch::heard(const std::string& id, uint64_t epoch, uint32_t rank, const v1::RankPace& pace,
                      Clock::Steady now) {
  gang_of(id, epoch).paces[rank] = {pace, now};
}

void HangWatch::take_record(const std::string& id, uint64_t epoch, uint32_t rank, const v1::FlightRecord& record) {
  Gang& gang = gang_of(id, epoch);
  if (gang.asked) gang.records[rank] = record;
}

std::vector<GangMember> HangWatch::members(const JobRecord& record) const {
  std::vector<GangMember> members;
  const Gang* gang = find(job_id(record.job().name()));
  if (gang == nullptr || gang->epoch != record.job().epoch()) return members;
  for (const v1::RankPlacement& place : record.job().placement()) {
    const auto pace = gang->paces.find(place.rank());
    if (pace == gang->paces.end()) continue;
    const auto flight = gang->records.find(place.rank());
    members.push_back(
        {place.rank(), place.node(), pace->second.pace, flight == gang->records.end() ? nullptr : &flight->second});
  }
  return members;
}

HangWatch::Next HangWatch::look(const JobRecord& record, Clock::Steady now) {
  const v1::Job& job = record.job();
  Gang& gang = gang_of(job_id(job.name()), job.epoch());
  if (job.state() != v1::Job::RUNNING) {
    gang.running.reset();
    gang.asked.reset();
    return Next::kNothing;
  }
  if (!gang.running) gang.running = now;
  // A rank that has ended is no hang, and what it ends by is on its way.
  for (const v1::RankPlacement& place : job.placement()) {
    if (place.state() != v1::RankPlacement::RUNNING) return Next::kNothing;
  }
  const std::vector<GangMember> all = members(record);
  if (!hangs(job.spec().restart(), all)) {
    gang.asked.reset();  // It got on after all.
    gang.records.clear();
    return Next::kNothing;
  }
  if (!gang.asked) {
    gang.asked = now;
    return Next::kAsk;
  }
  const bool complete = gang.records.size() == static_cast<size_t>(job.placement_size());
  return complete || now - *gang.asked >= patience_ ? Next::kJudge : Next::kNothing;
}

bool HangWatch::wants(const std::string& id, uint32_t rank) const {
  const Gang* gang = find(id);
  return gang != nullptr && gang->asked && gang->records.count(rank) == 0;
}

bool HangWatch::look_for_stragglers(const JobRecord& record) {
  const std::vector<GangMember> all = members(record);
  if (all.empty() || record.job().state() != v1::Job::RUNNING) return false;
  return gang_of(job_id(record.job().name()), record.job().epoch()).stragglers.look(all);
}

std::string HangWatch::stragglers(const JobRecord& record) const {
  const Gang* gang = find(job_id(record.job().name()));
  return gang == nullptr ? "" : gang->stragglers.message(members(record));
}

void HangWatch::show(const JobRecord& record, Clock::Steady now, v1::Job& job) const {
  const Gang* gang = find(job_id(job.name()));
  if (gang == nullptr || gang->epoch != job.epoch()) return;
  const double allowed = silence_allowed(job.spec().restart(), members(record));
  for (v1::RankPlacement& place : *job.mutable_placement()) {
    const auto heard = gang->paces.find(place.rank());
    if (place.state() != v1::RankPlacement::RUNNING || heard == gang->paces.end()) continue;
    const v1::RankPace& pace = heard->second.pace;
    const std::chrono::duration<double> since = now - heard->second.at;
    v1::RankProgress& shown = *place.mutable_progress();
    shown.set_step(pace.step());
    shown.set_step_seconds(pace.step_seconds());
    shown.set_own_seconds(pace.own_seconds());
    shown.set_silent_seconds(pace.silent_seconds() + since.count());
    shown.set_straggler(gang->stragglers.flagged(place.rank()));
    shown.set_hung(job.state() == v1::Job::RUNNING && pace.silent_seconds() > allowed);
  }
}

double HangWatch::straggler_ratio(const std::string& id) const {
  const Gang* gang = find(id);
  return gang == nullptr ? 0 : gang->stragglers.ratio();
}

std::optional<Clock::Steady> HangWatch::running_since(const std::string& id) const {
  const Gang* gang = find(id);
  return gang == nullptr ? std::nullopt : gang->running;
}

}  // namespace telar::server::jobs
