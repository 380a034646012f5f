// Gangs that hang or are held up, and shrunk ones that may grow.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/jobs/blame.h"
#include "server/jobs/condition.h"
#include "server/jobs/elastic.h"
#include "server/jobs/epoch.h"
#include "server/jobs/job_manager.h"

namespace telar::server::jobs {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(250);
constexpr int kMostEntriesKept = 32;      // Of a rank, in the job's record.
constexpr size_t kMostStacksKept = 4096;  // Bytes.
constexpr const char* kStraggler = "STRAGGLER";
constexpr const char* kHang = "HANG";

bool has_condition(const v1::Job& job, const std::string& type) {
  return std::any_of(job.conditions().begin(), job.conditions().end(),
                     [&](const v1::Condition& one) { return one.type() == type; });
}

void keep_records(JobRecord& record, const std::vector<GangMember>& gang) {
  record.clear_flights();
  for (const GangMember& member : gang) {
    if (member.record == nullptr) continue;
    RankFlight* flight = record.add_flights();
    flight->set_rank(member.rank);
    *flight->mutable_record() = *member.record;
    auto& entries = *flight->mutable_record()->mutable_entries();
    if (entries.size() > kMostEntriesKept) entries.DeleteSubrange(0, entries.size() - kMostEntriesKept);
    flight->mutable_record()->set_stacks(member.record->stacks().substr(0, kMostStacksKept));
  }
}

}  // namespace

void JobManager::hear_paces(const v1::HeartbeatRequest& request) {
  for (const v1::RankStatus& status : request.ranks()) {
    if (!status.has_pace()) continue;
    if (!find_open(status.job(), status.epoch(), status.rank(), request.node()).ok()) continue;
    hangs_.heard(job_id(status.job()), status.epoch(), status.rank(), status.pace());
  }
}

void JobManager::add_flight_wishes(const std::string& node, v1::HeartbeatResponse& response) const {
  for (const std::string& id : placed_) {
    const v1::Job& job = jobs_.at(id).job();
    for (const v1::RankPlacement& place : job.placement()) {
      if (place.node() != node || !hangs_.wants(id, place.rank())) continue;
      v1::FlightWish* wish = response.add_flights();
      wish->set_job(job.name());
      wish->set_epoch(job.epoch());
      wish->set_rank(place.rank());
    }
  }
}

absl::Status JobManager::report_flight(const v1::ReportFlightRequest& request) {
  std::lock_guard<std::mutex> hold(mutex_);
  auto record = find_open(request.job(), request.epoch(), request.rank(), request.node());
  if (!record.ok()) return record.status();
  hangs_.take_record(job_id(request.job()), request.epoch(), request.rank(), request.record());
  changes_.notify();
  return absl::OkStatus();
}

bool JobManager::look_after_gangs() {
  const Clock::Steady now = clock_->now();
  if (looked_after_ && now - *looked_after_ < kBetweenLooks) return false;
  looked_after_ = now;
  const std::set<std::string> ids = placed_;  // A commit may take one out.
  for (const std::string& id : ids) {
    const JobRecord& record = jobs_.at(id);
    switch (hangs_.look(record, now)) {
      case HangWatch::Next::kAsk:
        spdlog::warn("job {}: it hangs; asking its ranks where they are", id);
        bump(record.job());
        changes_.notify();
        break;
      case HangWatch::Next::kJudge:
        judge_hang(id);
        continue;
      case HangWatch::Next::kNothing:
        break;
    }
    note_stragglers(id);
  }
  return true;
}

void JobManager::judge_hang(const std::string& id) {
  Draft draft = draft_of(id);
  const std::vector<GangMember> gang = hangs_.members(draft.record());
  if (gang.empty()) return;
  const HangVerdict verdict = find_cause(gang);
  hang(draft, verdict.rank, verdict.of_node, verdict.message);
  const std::string& node = draft.job().placement(static_cast<int>(verdict.rank)).node();
  const std::string text = absl::StrCat("rank ", verdict.rank, " on node ", node, " ", verdict.message);
  set_condition(draft.job(), kHang, absl::StrCat(text, " (epoch ", draft.job().epoch(), ")"), draft.now());
  keep_records(draft.record(), gang);
  spdlog::warn("job {}: {}", id, text);
  if (absl::Status status = commit(draft); !status.ok()) {
    spdlog::error("job {}: cannot record that it hangs: {}", id, std::string(status.message()));
    return;  // Seen again in the next round.
  }
  if (observer_ != nullptr) observer_->on_hang(verdict.named);
}

void JobManager::note_stragglers(const std::string& id) {
  const JobRecord& record = jobs_.at(id);
  const bool changed = hangs_.look_for_stragglers(record);
  const bool noted = has_condition(record.job(), kStraggler);
  if (!changed && !noted) return;
  const std::string text = hangs_.stragglers(record);
  if (!changed && !text.empty()) return;
  Draft draft = draft_of(id);
  if (text.empty()) {
    clear_condition(draft.job(), kStraggler);
  } else {
    set_condition(draft.job(), kStraggler, text, draft.now());
    spdlog::warn("job {}: {}", id, text);
  }
  draft.touch();
  if (absl::Status status = commit(draft); !status.ok()) {
    spdlog::error("job {}: cannot record its stragglers: {}", id, std::string(status.message()));
    return;
  }
  if (observer_ != nullptr && !text.empty()) observer_->on_straggler();
}

void JobManager::grow_shrunk() {
  const Clock::Steady now = clock_->now();
  const std::set<std::string> ids = placed_;
  for (const std::string& id : ids) {
    const JobRecord& record = jobs_.at(id);
    const v1::Job& job = record.job();
    if (!job.spec().parallel().has_elastic() || job.state() != v1::Job::RUNNING) continue;
    const auto since = hangs_.running_since(id);
    if (!since || now - *since < options_.grow_after) continue;
    cluster::Cluster without = cluster_;  // What there would be if this job were gone.
    without.release(job.name());
    const v1::ResourceSpec::Kind kind = job.spec().resources().kind();
    for (const v1::JobSpec& shape : shapes(record)) {
      if (shape.parallel().data() <= job.data_parallel()) break;
      if (!without.find(kind, cluster::shape_of(shape))) continue;
      Draft draft = draft_of(id);
      grow(draft, shape.parallel().data());
      if (absl::Status status = commit(draft); !status.ok()) {
        spdlog::error("job {}: cannot record that it grows: {}", id, std::string(status.message()));
      }
      break;
    }
  }
}

std::optional<std::vector<cluster::Slot>> JobManager::find_place(const JobRecord& record, uint32_t free,
                                                                 v1::JobSpec& chosen) const {
  const std::set<std::string> avoided = avoided_nodes(record);
  const v1::ResourceSpec::Kind kind = record.job().spec().resources().kind();
  for (const v1::JobSpec& shape : shapes(record, free)) {
    chosen = shape;
    const cluster::GangShape gang = cluster::shape_of(shape);
    std::optional<std::vector<cluster::Slot>> slots;
    if (!avoided.empty()) slots = cluster_.find(kind, gang, avoided);
    if (!slots) slots = cluster_.find(kind, gang);
    if (slots) return slots;
  }
  return std::nullopt;
}

}  // namespace telar::server::jobs
