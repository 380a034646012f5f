#include "server/jobs/round.h"

#include <algorithm>

#include "server/cluster/times.h"
#include "server/jobs/room.h"

namespace telar::server::jobs {
namespace {

constexpr size_t kMostReservations = 4;
constexpr int kMostTries = 16;  // Jobs for which a reservation or room is looked for; each look costs a walk.

// A queue within the round.
struct Standing {
  QueueConfig config;
  const Line::Queue* queue = nullptr;
  Line::Queue::const_iterator next;
  uint32_t held = 0;
  uint64_t quota_kept = 0;  // Order of the job that the rest of the quota is kept for.

  bool over() const { return next == queue->end(); }
  double share() const { return held / config.weight; }
};

class Round {
 public:
  explicit Round(const RoundInput& input) : input_(input), room_(input), known_(input.line->requests()) {
    for (const Holder& holder : *input.holders) {
      result_.held[holder.queue] += holder.held;
      if (!holder.array.empty()) ++tasks_[holder.array];
      lowest_ = std::min(lowest_, config_of(*input.queues, holder.queue).priority);
    }
  }

  RoundResult run() {
    result_.refusals.reserve(input_.line->size());
    for (const auto& [name, queue] : input_.line->queues()) {
      standings_.push_back({config_of(*input_.queues, name), &queue, queue.begin(), result_.held[name]});
    }
    while (Standing* standing = next_queue()) {
      const Waiter& waiter = standing->next->second;
      if (result_.starts.size() == input_.most_starts) break;
      look_at(*standing, waiter);
      ++standing->next;
    }
    for (const Standing& standing : standings_) result_.held[standing.config.name] = standing.held;
    result_.reservations = std::move(room_.reservations());
    result_.owner = std::move(room_.owners());
    return std::move(result_);
  }

 private:
  // What is known of a request; devices only get fewer in a round.
  struct Known {
    bool no_room = false;  // On what is free and kept for nobody.
    double no_loan = 0;    // Above 0: nor with what is kept, for a job that runs so long.
    bool checked = false;  // `possible` is known.
    bool possible = false;
    bool tried = false;  // For a reservation.
  };

  // The next one to look at: of the highest queues the one with the smallest share, then with the oldest job.
  Standing* next_queue() {
    const auto before = [](const Standing& a, const Standing& b) {
      if (a.config.priority != b.config.priority) return a.config.priority > b.config.priority;
      if (a.share() != b.share()) return a.share() < b.share();
      return a.next->second.order < b.next->second.order;
    };
    Standing* best = nullptr;
    for (Standing& standing : standings_) {
      if (!standing.over() && (best == nullptr || before(standing, *best))) best = &standing;
    }
    return best;
  }

  void refuse(const Waiter& waiter, const Refusal& refusal) { result_.refusals[waiter.order] = refusal; }
  bool patient(const Waiter& waiter) const { return input_.now - waiter.queued < input_.patience; }

  void look_at(Standing& standing, const Waiter& waiter) {
    const Request& request = input_.line->request(waiter.request);
    if (waiter.depends && input_.held_back->count(waiter.order) != 0) return refuse(waiter, {v1::Waiting::DEPENDENCY});
    if (input_.backing_off->count(waiter.order) != 0) return refuse(waiter, {v1::Waiting::BACKOFF});
    if (waiter.array_most > 0 && tasks_[waiter.array] >= waiter.array_most) {
      return refuse(waiter, {v1::Waiting::ARRAY});
    }
    if (!within_quota(standing, waiter, request)) return;
    const uint32_t quota = standing.config.quota_devices;
    const uint32_t most = quota == 0 ? UINT32_MAX : quota - standing.held;
    if (auto devices = find(waiter, request, most)) return start(standing, waiter, std::move(*devices));
    Refusal refusal{v1::Waiting::DEVICES};
    try_to_reserve(standing, waiter, request, refusal);
    refuse(waiter, refusal);
    // Smaller tasks of its array do not take its turn for ever either.
    if (waiter.array_most > 0 && !patient(waiter) && known_[waiter.request].possible) ++tasks_[waiter.array];
  }

  bool within_quota(Standing& standing, const Waiter& waiter, const Request& request) {
    const uint32_t quota = standing.config.quota_devices;
    if (quota == 0) return true;
    if (request.least_devices() > quota) {
      refuse(waiter, {v1::Waiting::QUOTA, true});
      return false;
    }
    if (standing.quota_kept == 0 && standing.held + request.least_devices() <= quota) return true;
    refuse(waiter, {v1::Waiting::QUOTA, false, -1, standing.quota_kept});
    // Smaller ones pass it for a while, no longer: what they give back would never be enough at once.
    if (standing.quota_kept == 0 && !patient(waiter)) standing.quota_kept = waiter.order;
    return false;
  }

  std::optional<std::vector<uint32_t>> find(const Waiter& waiter, const Request& request, uint32_t most) {
    Known& known = known_[waiter.request];
    if (!known.no_room) {
      if (auto devices = room_.find(request, 0, most)) return devices;
      known.no_room = most >= request.devices();
    }
    const double left = waiter.seconds_left;
    if (left == 0 || room_.reservations().empty() || (known.no_loan > 0 && left >= known.no_loan)) return std::nullopt;
    auto devices = room_.find(request, left, most);
    if (!devices && most >= request.devices()) known.no_loan = left;
    return devices;
  }

  void start(Standing& standing, const Waiter& waiter, std::vector<uint32_t> devices) {
    Holder holder;
    holder.id = waiter.id;
    holder.order = waiter.order;
    holder.queue = waiter.queue;
    holder.priority = waiter.priority;
    holder.placed = input_.now;
    if (waiter.seconds_left > 0) {
      holder.ends = cluster::after(input_.now, waiter.seconds_left);
    }
    holder.held = static_cast<uint32_t>(devices.size());
    holder.devices = devices;
    room_.take(holder);
    standing.held += holder.held;
    if (!waiter.array.empty()) ++tasks_[waiter.array];
    result_.starts.push_back({waiter.order, waiter.id, std::move(devices)});
  }

  // The first of each request that has to wait may end others, and has devices kept for it.
  void try_to_reserve(const Standing& standing, const Waiter& waiter, const Request& request, Refusal& refusal) {
    Known& known = known_[waiter.request];
    if (!known.checked) known.possible = room_.possible(request);
    known.checked = true;
    if (!known.possible || known.tried || tries_ == kMostTries) return;
    if (room_.reservations().size() == kMostReservations) return;
    known.tried = true;
    ++tries_;
    preempt(standing.config, waiter, request);
    const size_t number = room_.reservations().size();
    if (const auto when = room_.start_of(request)) {
      room_.reserve(waiter, request, *when);
    } else if (!patient(waiter)) {
      room_.collect(waiter, request);
    }
    if (room_.reservations().size() > number) refusal.reservation = static_cast<int>(number);
  }

  void preempt(const QueueConfig& own, const Waiter& waiter, const Request& request) {
    if (!own.preempt || input_.holders->empty() || lowest_ > own.priority) return;
    const auto victims = room_.make_room(request, [&](const Holder& holder) {
      if (!holder.preemptible) return false;
      if (holder.queue == own.name) return holder.priority < waiter.priority;
      return config_of(*input_.queues, holder.queue).priority < own.priority;
    });
    for (const size_t number : victims) result_.preemptions.push_back({room_.holders()[number].id, waiter.id});
  }

  const RoundInput& input_;
  Room room_;
  RoundResult result_;
  std::vector<Standing> standings_;
  std::vector<Known> known_;                         // By request.
  std::unordered_map<std::string, uint32_t> tasks_;  // Array -> tasks that have devices.
  int32_t lowest_ = INT32_MAX;                       // Priority of the queues that hold something.
  int tries_ = 0;
};

}  // namespace

QueueConfig config_of(const std::vector<QueueConfig>& queues, const std::string& name) {
  const auto found =
      std::find_if(queues.begin(), queues.end(), [&](const QueueConfig& queue) { return queue.name == name; });
  if (found != queues.end()) return *found;
  QueueConfig usual;
  usual.name = name;
  return usual;
}

RoundResult plan_round(const RoundInput& input) { return Round(input).run(); }

}  // namespace telar::server::jobs
