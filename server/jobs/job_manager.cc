// Opening, storing, and what people look at. What they ask for: job_manager_requests.cc, job_manager_array.cc, and
// job_manager_nodes.cc. Workers: job_manager_workers.cc. The queue: job_manager_queue.cc.
#include "server/jobs/job_manager.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/cluster/times.h"
#include "server/jobs/admission.h"
#include "server/jobs/assignments.h"
#include "server/jobs/epoch.h"
#include "server/jobs/goodput.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {

constexpr int kDefaultPage = 50;
constexpr int kMostPage = 1000;
constexpr int kLookedATurn = 500;  // Of a list: some hundred microseconds.
constexpr int kCopiedATurn = 50;
constexpr size_t kLogChunk = 64 << 10;

absl::Status not_found(const std::string& name) {
  return error(absl::StatusCode::kNotFound, "JOB_NOT_FOUND", absl::StrCat("job '", name, "' does not exist"));
}

}  // namespace

JobManager::JobManager(JobOptions options, const Clock* clock, store::Store* store, store::LogStore* logs,
                       Observer* observer)
    : options_(std::move(options)),
      roots_(options_.allowed_roots),
      clock_(clock),
      store_(store),
      logs_(logs),
      observer_(observer),
      timeline_(clock),
      cluster_(clock, options_.lease),
      next_version_(static_cast<uint64_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(clock->wall().time_since_epoch()).count())),
      hangs_(options_.flight_patience) {}

absl::StatusOr<std::unique_ptr<JobManager>> JobManager::open(JobOptions options, const Clock* clock,
                                                             store::Store* store, store::LogStore* logs,
                                                             Observer* observer) {
  std::unique_ptr<JobManager> manager(new JobManager(std::move(options), clock, store, logs, observer));
  std::lock_guard<std::mutex> hold(manager->mutex_);
  if (absl::Status status = manager->replay(); !status.ok()) return status;
  return manager;
}

absl::Status JobManager::replay() {
  auto timeline = Timeline::open(clock_, store_);
  if (!timeline.ok()) return timeline.status();
  timeline_ = *timeline;
  auto rows = store_->jobs();
  if (!rows.ok()) return rows.status();
  for (const store::JobRow& row : *rows) {
    JobRecord record;
    if (!record.ParseFromString(row.blob)) {
      return absl::DataLossError(absl::StrCat("store: the record of job ", row.id, " cannot be read"));
    }
    apply(JobRecord(), record);
  }
  auto settings = store_->settings(kQuarantinePrefix);
  if (!settings.ok()) return settings.status();
  if (absl::Status status = devices_.load(*settings); !status.ok()) return status;
  return replay_nodes();
}

absl::StatusOr<const JobRecord*> JobManager::find(const std::string& name) const {
  const auto found = jobs_.find(job_id(name));
  if (found == jobs_.end() || found->second.job().name() != name) return not_found(name);
  return &found->second;
}

Draft JobManager::draft_of(const std::string& id) const { return Draft(jobs_.at(id), clock_->wall(), timeline_.now()); }

absl::StatusOr<store::Batch> JobManager::finish(Draft& draft) const {
  const std::string id = job_id(draft.job().name());
  if (pending(id)) {
    return absl::InternalError(absl::StrCat("job ", id, ": a change was made of a state that is being changed"));
  }
  settle(draft);
  return draft.finish();
}

// It is stored.
void JobManager::let_count(const Draft& draft) {
  const auto known = jobs_.find(job_id(draft.job().name()));
  const JobRecord before = known == jobs_.end() ? JobRecord() : std::move(known->second);
  apply(before, draft.record());
  if (observer_ != nullptr && draft.restarted()) observer_->on_restart(*draft.restarted());
  changes_.notify();
}

// Every index follows from the record alone, so that a replay gives the same.
void JobManager::apply(const JobRecord& before, const JobRecord& after) {
  const v1::Job& job = after.job();
  const std::string id = job_id(job.name());
  jobs_[id] = after;
  if (before.job().state() != job.state()) last_round_seen_ = {};  // Others may depend on it.
  by_order_[after.order()] = id;
  next_order_ = std::max(next_order_, after.order() + 1);
  if (before.job().epoch() != job.epoch() || placed(before.job().state()) != placed(job.state())) {
    index_nodes(id, before.job(), false);
    index_nodes(id, job, placed(job.state()));
  }
  if (job.state() == v1::Job::QUEUED) {
    line_.put(after);
  } else {
    line_.remove(after.order());
  }
  plan_retry(before, after);
  if (placed(job.state())) {
    if (before.job().epoch() != job.epoch()) {
      for (const v1::RankPlacement& place : job.placement()) cluster_.hold(place.node(), place.device(), job.name());
    }
    placed_.insert(id);
  } else {
    placed_.erase(id);
    stops_.erase(id);
    lines_.erase(id);
    hangs_.forget(id);
    forecasts_.erase(id);
    if (placed(before.job().state())) cluster_.release(job.name());  // Which looks at every node.
  }
  if (assignments_differ(before, after)) {
    bump(before.job());
    bump(job);
  }
}

void JobManager::index_nodes(const std::string& id, const v1::Job& job, bool placed) {
  for (const v1::RankPlacement& place : job.placement()) {
    if (placed) {
      placed_on_[place.node()].insert(id);
    } else if (const auto found = placed_on_.find(place.node()); found != placed_on_.end()) {
      found->second.erase(id);
    }
  }
}

void JobManager::bump(const v1::Job& job) {
  for (const v1::RankPlacement& place : job.placement()) bump_node(place.node());
}

void JobManager::bump_node(const std::string& node) {
  versions_[node] = ++next_version_;
  if (const auto found = node_signals_.find(node); found != node_signals_.end()) found->second->notify();
}

absl::StatusOr<bool> JobManager::replayed(const std::string& request, google::protobuf::Message& answer) const {
  if (request.empty()) return false;
  auto stored = store_->answer(request);
  if (!stored.ok()) return stored.status();
  if (!stored->has_value()) return false;
  if (!answer.ParseFromString(**stored)) return absl::DataLossError(absl::StrCat("store: answer ", request));
  return true;
}

v1::Job JobManager::shown(const JobRecord& record) const {
  v1::Job job = record.job();
  *job.mutable_goodput() = goodput_of(record, timeline_.now());
  job.set_run_seconds(run_seconds(job.goodput()));
  if (placed(job.state())) show_placed(record, job);
  const Waiter* waiter = line_.find(record.order());
  if (waiter == nullptr || !explainer_) return job;
  auto waiting = explainer_->explain(*waiter, line_.request(waiter->request));
  if (!waiting) return job;
  if (waiting->reason() == v1::Waiting::DEPENDENCY) {
    waiting->set_message(dependency_that(Dependence::kWaits, job).value_or("what it comes after is over by now"));
    waiting->set_unblock("what it comes after gets so far");
  }
  // While it backs off, what failed is worth more.
  if (waiting->reason() != v1::Waiting::BACKOFF) job.set_message(waiting->message());
  *job.mutable_waiting() = *std::move(waiting);
  return job;
}

absl::StatusOr<v1::Job> JobManager::get(const std::string& name) const {
  Hold hold = take(Doing::kLook);
  auto record = find(name);
  if (!record.ok()) return record.status();
  return shown(**record);
}

absl::StatusOr<v1::ListJobsResponse> JobManager::list(const v1::ListJobsRequest& request) const {
  std::vector<Violation> found;
  if (request.page_size() < 0) {
    found.push_back({"page_size", absl::StrCat(request.page_size(), " must not be negative; 0 means ", kDefaultPage)});
  }
  if (!request.parent().empty() && project_of(request.parent()).empty()) {
    found.push_back(
        {"parent", absl::StrCat("'", request.parent(), "' must be 'projects/{project}', or empty for all")});
  }
  uint64_t below = UINT64_MAX;  // The token is the order of the last job of the page before.
  if (!request.page_token().empty() && !absl::SimpleHexAtoi(request.page_token(), &below)) {
    found.push_back({"page_token", absl::StrCat("'", request.page_token(), "' is not from an earlier answer")});
  }
  if (!found.empty()) return invalid(found);

  const int most = request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMostPage);
  v1::ListJobsResponse response;
  // A few jobs a turn, so that others get the lock between. A job has one place in the order for ever.
  for (bool more = true; more;) {
    Hold hold = take(Doing::kList);
    more = list_some(request, most, &below, &response);
  }
  return response;
}

bool JobManager::list_some(const v1::ListJobsRequest& request, int most, uint64_t* below,
                           v1::ListJobsResponse* response) const {
  const std::string in_project = request.parent().empty() ? "" : request.parent() + "/jobs/";
  int looked = 0;
  int copied = 0;
  for (auto entry = by_order_.lower_bound(*below); entry != by_order_.begin();) {
    --entry;
    const JobRecord& record = jobs_.at(entry->second);
    const v1::Job& job = record.job();
    const auto& states = request.states();
    const bool wanted = job.name().rfind(in_project, 0) == 0 &&
                        (states.empty() || std::find(states.begin(), states.end(), job.state()) != states.end());
    if (wanted && response->jobs_size() == most) {
      response->set_next_page_token(absl::StrCat(absl::Hex(*below)));
      return false;
    }
    if (wanted) {
      *response->add_jobs() = shown(record);
      ++copied;
    }
    *below = entry->first;
    if (++looked == kLookedATurn || copied == kCopiedATurn) return true;
  }
  return false;
}

absl::StatusOr<EventPage> JobManager::events(const std::string& name, uint64_t after, int limit) const {
  EventPage page;
  uint64_t last = 0;
  {
    Hold hold = take(Doing::kLook);
    auto record = find(name);
    if (!record.ok()) return record.status();
    page.job = shown(**record);
    last = (*record)->last_sequence();
  }
  uint64_t sent = after;
  if (after < last) {
    auto rows = store_->events(job_id(name), after, limit);
    if (!rows.ok()) return rows.status();
    for (const store::EventRow& row : *rows) {
      v1::JobEvent event;
      if (!event.ParseFromString(row.blob)) return absl::DataLossError(absl::StrCat("store: an event of ", name));
      sent = row.sequence;
      page.events.push_back(std::move(event));
    }
  }
  page.complete = terminal(page.job.state()) && sent >= last;
  return page;
}

absl::StatusOr<store::LogStore::Piece> JobManager::read_log(const std::string& name, uint64_t epoch, uint32_t rank,
                                                            uint64_t offset) const {
  {
    Hold hold = take(Doing::kLook);
    if (auto record = find(name); !record.ok()) return record.status();
  }
  return logs_->read({job_id(name), epoch, rank}, offset, kLogChunk);
}

std::vector<v1::Node> JobManager::nodes() const {
  Hold hold = take(Doing::kLook);
  return cluster_.nodes();
}

void JobManager::shut_down() {
  changes_.shut_down();
  Hold hold = take(Doing::kChange);
  for (auto& [node, signal] : node_signals_) signal->shut_down();
}

void JobManager::set_rendezvous_address(const std::string& address) {
  Hold hold = take(Doing::kChange);
  options_.rendezvous_address = address;
}

std::vector<std::string> JobManager::metrics_addresses() const {
  Hold hold = take(Doing::kCount);
  return cluster_.metrics_addresses();
}

Census JobManager::census() const {
  Census census;
  std::string id;
  for (bool more = true; more;) {
    Hold hold = take(Doing::kCount);
    more = count_some(&id, &census);
  }
  return census;
}

bool JobManager::count_some(std::string* id, Census* census) const {
  auto entry = jobs_.upper_bound(*id);
  for (int looked = 0; entry != jobs_.end() && looked < kLookedATurn; ++entry, ++looked) {
    *id = entry->first;
    const v1::Job& job = entry->second.job();
    ++census->states[job.state()];
    if (terminal(job.state())) continue;
    const v1::ParallelSpec& parallel = job.spec().parallel();
    const v1::JobForecast* forecast = forecast_of(job);
    census->live.push_back({.id = *id,
                            .name = job.spec().name(),
                            .model = job.spec().model().preset(),
                            .state = job.state(),
                            .kind = job.spec().resources().kind(),
                            .data = job.data_parallel() > 0 ? job.data_parallel() : parallel.data(),
                            .tensor = parallel.tensor(),
                            .pipeline = parallel.pipeline(),
                            .step = job.progress().step(),
                            .goodput = goodput_of(entry->second, timeline_.now()),
                            .straggler_ratio = hangs_.straggler_ratio(*id),
                            .forecast = forecast == nullptr ? v1::JobForecast() : *forecast});
  }
  return entry != jobs_.end();
}

}  // namespace telar::server::jobs
