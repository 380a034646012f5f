// Leases that run out, what follows from time and from other jobs, and rounds of the scheduler.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/cluster/times.h"
#include "server/jobs/dependencies.h"
#include "server/jobs/elastic.h"
#include "server/jobs/epoch.h"
#include "server/jobs/goodput.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/restart_policy.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {

// What is placed is looked at again soon. So many fit one transaction of etcd.
constexpr size_t kMostStarts = 32;
constexpr std::chrono::milliseconds kLongestPause(500);
// What cannot be recorded.
constexpr const char* kLostNode = "a lost node";
constexpr const char* kMoves = "its end, or that it moves";
constexpr const char* kPlacement = "its placement, or its preemption";

}  // namespace

// Jobs of which a change is pending are left out: that change, once it counts, brings about the next round.
void JobManager::tick() {
  Hold hold = take(Doing::kLeases);
  keep_timeline(hold);
  // Each of these looks at every job that is placed; calls have their turn in between.
  for (const auto look : {&JobManager::expire_leases, &JobManager::give_up_receipts, &JobManager::enforce}) {
    (this->*look)(hold);
    hold.turn_to(Doing::kLeases);
  }
  const bool looked = look_after_gangs(hold);
  hold.turn_to(Doing::kRound);
  place_queued(hold);
  if (looked) grow_shrunk(hold);  // Behind the queue: what waits comes first.
}

void JobManager::keep_timeline(Hold& hold) {
  const auto set = timeline_.unkept();
  if (!set) return;
  spdlog::warn("the wall clock was set by {:.1f} s; no job waits longer or shorter for it",
               std::chrono::duration<double>(*set).count());
  const auto ahead = timeline_.ahead();
  store::Batch batch;
  batch.settings = {Timeline::row(ahead)};
  hold.unlock();
  const absl::Status status = store({batch});
  hold.lock();
  if (status.ok()) return timeline_.keep(ahead);
  // It is tried again in the next round.
  spdlog::error("cannot record by how much the wall clock was set: {}", std::string(status.message()));
}

void JobManager::expire_leases(Hold& hold) {
  for (const std::string& node : cluster_.expire()) spdlog::warn("node {}: its lease ran out", node);
  AllPending changes;
  for (const std::string& id : placed_) {
    const auto& places = jobs_.at(id).job().placement();
    const bool lost = std::any_of(places.begin(), places.end(),
                                  [this](const v1::RankPlacement& place) { return cluster_.lost(place.node()); });
    if (!lost || pending(id)) continue;
    Draft draft = draft_of(id);
    for (int rank = 0; rank < draft.job().placement_size(); ++rank) {
      if (cluster_.lost(draft.job().placement(rank).node())) lose(draft, static_cast<uint32_t>(rank));
    }
    add(changes, change_of(std::move(draft)), kLostNode);
  }
  finish_round(hold, changes, kLostNode);  // What cannot be stored now is seen again in the next round.
}

void JobManager::enforce(Hold& hold) {
  AllPending changes;
  for (const std::string& id : placed_) {
    if (pending(id)) continue;
    const JobRecord& record = jobs_.at(id);
    const v1::Job::State state = record.job().state();
    const uint64_t limit = record.job().spec().scheduling().time_limit_seconds();
    if (limit > 0 && state == v1::Job::RUNNING &&
        run_seconds(goodput_of(record, timeline_.now())) >= static_cast<double>(limit)) {
      Draft draft = draft_of(id);
      end_at_time_limit(draft);
      add(changes, change_of(std::move(draft)), kMoves);
    } else if (state == v1::Job::STARTING || state == v1::Job::RUNNING) {
      const std::string why = why_it_moves(record.job());
      if (why.empty()) continue;
      Draft draft = draft_of(id);
      interrupt(draft, why);
      add(changes, change_of(std::move(draft)), kMoves);
    }
  }
  for (const uint64_t order : line_.depending()) {
    const std::string& id = by_order_.at(order);
    if (pending(id)) continue;
    const auto failed = dependency_that(Dependence::kFails, jobs_.at(id).job());
    if (!failed) continue;
    Draft draft = draft_of(id);
    draft.job().set_failure_class(v1::DEPENDENCY);
    draft.job().clear_retry_time();
    draft.transition(v1::Job::FAILED, absl::StrCat(*failed, ", which it never will"));
    add(changes, change_of(std::move(draft)), kMoves);
  }
  finish_round(hold, changes, kMoves);
}

// A wall clock that was set back must not keep a job for longer than its delay.
void JobManager::plan_retry(const JobRecord& before, const JobRecord& after) {
  const v1::Job& job = after.job();
  const std::string id = job_id(job.name());
  if (job.state() != v1::Job::QUEUED || !job.has_retry_time()) {
    retry_at_.erase(id);
  } else if (before.job().state() != v1::Job::QUEUED) {
    const Clock::Steady::duration left = cluster::to_wall(job.retry_time()) - clock_->wall();
    const uint32_t first = job.spec().restart().backoff_seconds();
    const Clock::Steady::duration most =
        std::max(backoff(first, job.restarts()), backoff(first, job.without_progress()));
    retry_at_[id] = clock_->now() + std::min(left, most);
  }
}

std::string JobManager::why_it_moves(const v1::Job& job) const {
  for (const v1::RankPlacement& place : job.placement()) {
    const bool drained = cluster_.scheduling(place.node()) == v1::Node::DRAINING;
    if (!drained && !cluster_.leaving(place.node())) continue;
    return absl::StrCat("moves away from node ", place.node(), drained ? ", which is drained" : ", whose worker ends");
  }
  return "";
}

std::set<uint64_t> JobManager::held_back() const {
  std::set<uint64_t> orders;
  for (const uint64_t order : line_.depending()) {
    const v1::Job& job = jobs_.at(by_order_.at(order)).job();
    // One that fails for it may not be told yet: what it comes after failed a moment ago.
    if (dependency_that(Dependence::kWaits, job) || dependency_that(Dependence::kFails, job)) orders.insert(order);
  }
  return orders;
}

std::optional<std::string> JobManager::dependency_that(Dependence is, const v1::Job& job) const {
  for (const v1::Dependency& dependency : job.spec().scheduling().after()) {
    const auto other = find(dependency.job());
    if (other.ok() && check(dependency, (*other)->job()) == is) return describe(dependency, (*other)->job());
  }
  return std::nullopt;
}

Holder JobManager::holder_of(const JobRecord& record, const cluster::Inventory& inventory, Clock::Wall now) const {
  const v1::Job& job = record.job();
  const v1::SchedulingSpec& wishes = job.spec().scheduling();
  Holder holder;
  holder.id = job_id(job.name());
  holder.order = record.order();
  holder.queue = queue_of(wishes);
  holder.priority = wishes.priority();
  holder.ending = ending(job.state());
  holder.preemptible = !holder.ending && (!wishes.has_preemptible() || wishes.preemptible());
  holder.placed = cluster::to_wall(record.place_time());
  holder.array = job.array();
  holder.held = static_cast<uint32_t>(job.placement_size());
  if (holder.ending) {
    holder.ends = now;
  } else if (wishes.time_limit_seconds() > 0) {
    const double ran = run_seconds(goodput_of(record, now));
    holder.ends = cluster::after(now, std::max(0.0, static_cast<double>(wishes.time_limit_seconds()) - ran));
  }
  const auto by_name = [](const cluster::Inventory::Node& node, const std::string& name) { return node.name < name; };
  for (const v1::RankPlacement& place : job.placement()) {
    const auto node = std::lower_bound(inventory.nodes.begin(), inventory.nodes.end(), place.node(), by_name);
    if (node == inventory.nodes.end() || node->name != place.node()) continue;
    for (uint32_t device = node->first; device < node->first + node->count; ++device) {
      const cluster::Inventory::Device& one = inventory.devices[device];
      if (one.kind != place.device().kind() || one.index != place.device().index()) continue;
      if (one.holder == job.name()) holder.devices.push_back(device);
    }
  }
  return holder;
}

RoundView JobManager::view() const {
  RoundView view;
  view.now = timeline_.now();
  view.ahead = timeline_.ahead();
  view.inventory = cluster_.inventory();
  view.queues = options_.queues;
  for (const auto& [id, at] : retry_at_) {
    if (clock_->now() < at) view.backing_off.insert(jobs_.at(id).order());
  }
  view.holders.reserve(placed_.size());
  for (const std::string& id : placed_) view.holders.push_back(holder_of(jobs_.at(id), view.inventory, view.now));
  return view;
}

RoundInput JobManager::round_input(const RoundView& view, const std::set<uint64_t>& held_back) const {
  RoundInput input;
  input.now = view.now;
  input.patience = options_.patience;
  input.inventory = &view.inventory;
  input.queues = &view.queues;
  input.line = &line_;
  input.holders = &view.holders;
  input.held_back = &held_back;
  input.backing_off = &view.backing_off;
  return input;
}

void JobManager::place_queued(Hold& hold) {
  if (line_.size() == 0) {
    explainer_.reset();
    return;
  }
  const auto now = clock_->now();
  const std::pair<uint64_t, uint64_t> seen{cluster_.version(), line_.version()};
  // Most changes are steps that someone made; time alone may move things, too.
  if (explainer_ && seen == last_round_seen_ && now - last_round_ < kLongestPause) return;
  last_round_ = now;
  RoundView view = this->view();
  const std::set<uint64_t> back = held_back();
  RoundInput input = round_input(view, back);
  input.most_starts = kMostStarts;
  view.result = plan_round(input);
  AllPending changes;
  for (const Preemption& preemption : view.result.preemptions) preempt(preemption, changes);
  start(hold, std::move(changes), view);
  // Cut short, there may be more to start.
  last_round_seen_ = view.result.starts.size() == kMostStarts ? std::pair<uint64_t, uint64_t>() : seen;
  explainer_ = explainer_of(std::move(view));
}

std::unique_ptr<Explainer> JobManager::explainer_of(RoundView view) const {
  return std::make_unique<Explainer>(std::move(view), [this](const std::string& id) -> std::string {
    const auto found = jobs_.find(id);
    return found == jobs_.end() ? id : found->second.job().name();
  });
}

void JobManager::preempt(const Preemption& preemption, AllPending& changes) {
  if (pending(preemption.victim)) return;
  Draft draft = draft_of(preemption.victim);
  interrupt(draft, absl::StrCat("preempted by ", jobs_.at(preemption.by).job().name()));
  if (!draft.changed()) return;
  draft.job().set_preemptions(draft.job().preemptions() + 1);
  add(changes, change_of(std::move(draft)), kPlacement);
}

void JobManager::start(Hold& hold, AllPending changes, RoundView& view) {
  const size_t preempted = changes.size();
  std::vector<const Start*> placed;
  for (const Start& one : view.result.starts) {
    if (pending(one.id)) continue;
    std::vector<cluster::Slot> slots;
    for (const uint32_t device : one.devices) slots.push_back(cluster_.slot(view.inventory, device));
    Draft draft = draft_of(one.id);
    begin_epoch(draft, slots);
    note_shape(draft, slots.size());
    const size_t before = changes.size();
    add(changes, change_of(std::move(draft)), kPlacement);
    if (changes.size() > before) placed.push_back(&one);
  }
  const std::vector<absl::Status> stored = finish_round(hold, changes, kPlacement);
  for (size_t i = 0; i < placed.size(); ++i) {
    if (!stored[preempted + i].ok()) continue;
    const JobRecord& record = jobs_.at(placed[i]->id);
    for (const uint32_t device : placed[i]->devices) view.inventory.devices[device].holder = record.job().name();
    if (observer_ == nullptr) continue;
    const auto waited = view.now - cluster::to_wall(record.queue_time());
    observer_->on_placed(std::chrono::duration<double>(waited).count());
  }
}

void JobManager::try_out(const JobRecord& record, v1::Job& job) {
  RoundView view = this->view();
  std::set<uint64_t> back = held_back();
  line_.put(record);
  const auto dependent = dependency_that(Dependence::kWaits, record.job());
  if (dependent) back.insert(record.order());
  view.result = plan_round(round_input(view, back));
  const Waiter waiter = *line_.find(record.order());
  const Request request = line_.request(waiter.request);
  line_.remove(record.order());
  for (const Start& start : view.result.starts) {
    if (start.order != record.order()) continue;
    job.set_data_parallel(replicas_of(job.spec(), start.devices.size()));
    for (const uint32_t device : start.devices) {
      const cluster::Slot slot = cluster_.slot(view.inventory, device);
      v1::RankPlacement* place = job.add_placement();
      place->set_rank(static_cast<uint32_t>(job.placement_size()) - 1);
      place->set_node(slot.node);
      *place->mutable_device() = slot.device;
    }
    return;
  }
  auto waiting = explainer_of(std::move(view))->explain(waiter, request);
  if (!waiting) return;
  if (dependent) waiting->set_message(*dependent);
  job.set_message(waiting->message());
  *job.mutable_waiting() = *std::move(waiting);
}

std::vector<v1::Queue> JobManager::queues() const {
  Hold hold = take(Doing::kLook);
  std::map<std::string, v1::Queue> found;
  const auto of = [&](const std::string& name) -> v1::Queue& {
    v1::Queue& queue = found[name.empty() ? kDefaultQueue : name];
    return queue;
  };
  for (const QueueConfig& config : options_.queues) of(config.name);
  for (const auto& [name, queue] : line_.queues()) {
    of(name).set_queued_jobs(static_cast<uint32_t>(queue.size()));
    uint32_t devices = 0;
    for (const auto& [place, waiter] : queue) devices += line_.request(waiter.request).devices();
    of(name).set_queued_devices(devices);
  }
  for (const std::string& id : placed_) {
    const v1::Job& job = jobs_.at(id).job();
    v1::Queue& queue = of(job.spec().scheduling().queue());
    queue.set_running_jobs(queue.running_jobs() + 1);
    queue.set_held_devices(queue.held_devices() + static_cast<uint32_t>(job.placement_size()));
  }
  std::vector<v1::Queue> all;
  for (auto& [name, queue] : found) {
    const QueueConfig config = config_of(options_.queues, name);
    queue.set_name(name);
    queue.set_weight(config.weight);
    queue.set_quota_devices(config.quota_devices);
    queue.set_priority(config.priority);
    all.push_back(std::move(queue));
  }
  return all;
}

void JobManager::set_queues(std::vector<QueueConfig> queues) {
  Hold hold = take(Doing::kChange);
  options_.queues = std::move(queues);
  last_round_seen_ = {};
  changes_.notify();
}

}  // namespace telar::server::jobs
