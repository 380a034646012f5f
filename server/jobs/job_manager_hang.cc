// Gangs that hang or are held up, shrunk ones that may grow, and what people see of all of them.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/jobs/conditions.h"
#include "server/jobs/elastic.h"
#include "server/jobs/epoch.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(250);
constexpr std::chrono::seconds kBetweenTrials(1);  // Each costs a round of the scheduler.
constexpr int kMostAccounts = 32;                  // Ranks of a gang that hangs, in the log.
constexpr size_t kMostOfThreads = 4096;            // Bytes.
constexpr const char* kStraggler = "STRAGGLER";
constexpr const char* kHang = "HANG";

// A pace that is no number decides nothing.
bool sound(const v1::RankPace& pace) {
  return std::isfinite(pace.silent_seconds()) && std::isfinite(pace.step_seconds()) &&
         std::isfinite(pace.own_seconds()) && std::isfinite(pace.slowest_seconds());
}

// What is too long for the job's condition.
void log_accounts(const std::string& id, const std::vector<GangMember>& gang, uint32_t cause) {
  int told = 0;
  for (const GangMember& member : gang) {
    if (member.rank != cause && ++told > kMostAccounts) continue;
    spdlog::warn("job {}: {}", id, account_of(member));
    if (member.rank != cause || member.record == nullptr) continue;
    spdlog::warn("job {}: threads of rank {}:\n{}", id, cause, member.record->stacks().substr(0, kMostOfThreads));
  }
}

}  // namespace

void JobManager::hear_paces(const v1::HeartbeatRequest& request) {
  for (const v1::RankStatus& status : request.ranks()) {
    if (!status.has_pace() || !sound(status.pace())) continue;
    if (!find_open(status.job(), status.epoch(), status.rank(), request.node()).ok()) continue;
    hangs_.heard(job_id(status.job()), status.epoch(), status.rank(), status.pace(), clock_->now());
  }
}

void JobManager::add_flight_wishes(const std::string& node, v1::HeartbeatResponse& response) const {
  const auto here = placed_on_.find(node);
  if (here == placed_on_.end()) return;
  for (const std::string& id : here->second) {
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
  Hold hold = take(Doing::kReport);
  auto record = find_open(request.job(), request.epoch(), request.rank(), request.node());
  if (!record.ok()) return record.status();
  hangs_.take_record(job_id(request.job()), request.epoch(), request.rank(), request.record());
  changes_.notify();
  return absl::OkStatus();
}

bool JobManager::look_after_gangs(Hold& hold) {
  const Clock::Steady now = clock_->now();
  if (looked_after_ && now - *looked_after_ < kBetweenLooks) return false;
  looked_after_ = now;
  const std::set<std::string> ids = placed_;  // While one is stored others may come and go.
  for (const std::string& id : ids) {
    if (pending(id) || placed_.count(id) == 0) continue;
    const JobRecord& record = jobs_.at(id);
    switch (hangs_.look(record, now)) {
      case HangWatch::Next::kAsk:
        spdlog::warn("job {}: it hangs; asking its ranks where they are", id);
        bump(record.job());
        changes_.notify();
        break;
      case HangWatch::Next::kJudge:
        judge_hang(hold, id);
        continue;
      case HangWatch::Next::kNothing:
        break;
    }
    note_stragglers(hold, id);
  }
  return true;
}

void JobManager::judge_hang(Hold& hold, const std::string& id) {
  Draft draft = draft_of(id);
  const std::vector<GangMember> gang = hangs_.members(draft.record());
  if (gang.empty()) return;
  const HangVerdict verdict = find_cause(gang);
  hang(draft, verdict.rank, verdict.of_node, verdict.message);
  const std::string& node = draft.job().placement(static_cast<int>(verdict.rank)).node();
  const std::string text = absl::StrCat("rank ", verdict.rank, " on node ", node, " ", verdict.message);
  set_condition(draft, kHang, absl::StrCat(text, " (epoch ", draft.job().epoch(), ")"));
  spdlog::warn("job {}: {}", id, text);
  log_accounts(id, gang, verdict.rank);
  if (absl::Status status = commit(hold, std::move(draft)).status(); !status.ok()) {
    spdlog::error("job {}: cannot record that it hangs: {}", id, std::string(status.message()));
    return;  // Seen again in the next round.
  }
  if (observer_ != nullptr) observer_->on_hang(verdict.named);
}

void JobManager::note_stragglers(Hold& hold, const std::string& id) {
  const JobRecord& record = jobs_.at(id);
  const bool changed = hangs_.look_for_stragglers(record);
  const bool noted = has_condition(record.job(), kStraggler);
  if (!changed && !noted) return;
  const std::string text = hangs_.stragglers(record);
  if (!changed && !text.empty()) return;
  Draft draft = draft_of(id);
  if (text.empty()) {
    clear_condition(draft, kStraggler);
  } else {
    set_condition(draft, kStraggler, text);
    spdlog::warn("job {}: {}", id, text);
  }
  if (absl::Status status = commit(hold, std::move(draft)).status(); !status.ok()) {
    spdlog::error("job {}: cannot record its stragglers: {}", id, std::string(status.message()));
    return;
  }
  if (observer_ != nullptr && !text.empty()) observer_->on_straggler();
}

uint32_t JobManager::replicas_if_queued(const JobRecord& record) {
  const v1::Job& job = record.job();
  RoundView view = this->view();
  const v1::ResourceSpec::Kind kind = job.spec().resources().kind();
  if (std::none_of(view.inventory.devices.begin(), view.inventory.devices.end(),
                   [&](const cluster::Inventory::Device& one) { return one.kind == kind && one.holder.empty(); })) {
    return job.data_parallel();  // As most often; a round costs more than this.
  }
  std::erase_if(view.holders, [&](const Holder& holder) { return holder.order == record.order(); });
  for (cluster::Inventory::Device& device : view.inventory.devices) {
    if (device.holder == job.name()) device.holder.clear();
  }
  JobRecord queued = record;
  queued.set_lost_node(false);  // As after an interruption.
  line_.put(queued);
  const std::set<uint64_t> back = held_back();
  const RoundResult result = plan_round(round_input(view, back));
  line_.remove(record.order());
  for (const Start& start : result.starts) {
    if (start.order == record.order()) return replicas_of(job.spec(), start.devices.size());
  }
  return 0;
}

void JobManager::grow_shrunk(Hold& hold) {
  const Clock::Steady now = clock_->now();
  if (looked_for_growth_ && now - *looked_for_growth_ < kBetweenTrials) return;
  looked_for_growth_ = now;
  const std::set<std::string> ids = placed_;  // While one is stored others may come and go.
  for (const std::string& id : ids) {
    if (pending(id) || placed_.count(id) == 0) continue;
    const JobRecord& record = jobs_.at(id);
    const v1::Job& job = record.job();
    if (job.state() != v1::Job::RUNNING || job.placement_size() >= static_cast<int>(most_ranks(job.spec()))) continue;
    const auto since = hangs_.running_since(id);
    if (!since || now - *since < options_.grow_after) continue;
    const uint32_t replicas = replicas_if_queued(record);
    if (replicas <= job.data_parallel()) continue;
    Draft draft = draft_of(id);
    interrupt(draft, absl::StrCat("there are devices for ", replicas, " replicas instead of ", job.data_parallel()));
    if (absl::Status status = commit(hold, std::move(draft)).status(); !status.ok()) {
      spdlog::error("job {}: cannot record that it grows: {}", id, std::string(status.message()));
    }
  }
}

void JobManager::show_placed(const JobRecord& record, v1::Job& job) const {
  hangs_.show(record, clock_->now(), job);
  for (int rank = 0; rank < std::min(job.placement_size(), record.ranks_size()); ++rank) {
    if (record.ranks(rank).memory_bytes() == 0 || job.placement(rank).state() != v1::RankPlacement::RUNNING) continue;
    job.mutable_placement(rank)->mutable_progress()->set_memory_bytes(record.ranks(rank).memory_bytes());
  }
  if (const v1::JobForecast* forecast = forecast_of(job)) *job.mutable_forecast() = *forecast;
}

const v1::JobForecast* JobManager::forecast_of(const v1::Job& job) const {
  const auto forecast = forecasts_.find(job_id(job.name()));
  const bool known = placed(job.state()) && forecast != forecasts_.end() && forecast->second.first == job.epoch() &&
                     forecast->second.second.memory_size() > 0;
  return known ? &forecast->second.second : nullptr;
}

std::optional<ForecastWish> JobManager::forecast_wanted() const {
  Hold hold = take(Doing::kCount);
  for (const std::string& id : placed_) {
    const JobRecord& record = jobs_.at(id);
    const auto known = forecasts_.find(id);
    if (ending(record.job().state()) || (known != forecasts_.end() && known->second.first == record.job().epoch())) {
      continue;
    }
    std::map<std::string, v1::Node> nodes;
    for (const v1::RankPlacement& place : record.job().placement()) {
      *nodes[place.node()].add_devices()->mutable_device() = place.device();
    }
    ForecastWish wish{id, record.job().epoch(), current_shape(record), {}};
    for (const auto& [name, node] : nodes) wish.nodes.push_back(node);
    return wish;
  }
  return std::nullopt;
}

void JobManager::set_forecast(const ForecastWish& wish, v1::JobForecast forecast) {
  Hold hold = take(Doing::kCount);
  if (placed_.count(wish.job) == 0 || jobs_.at(wish.job).job().epoch() != wish.epoch) return;
  forecasts_[wish.job] = {wish.epoch, std::move(forecast)};
}

}  // namespace telar::server::jobs
