#include "worker/agent/agent.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace telar::agent {

using std::chrono::milliseconds;

namespace {
constexpr milliseconds kLastShipping{5'000};
constexpr milliseconds kGoodbye{3'000};
}  // namespace

Agent::Agent(AgentConfig config, const StateDir* state, Spawner* spawner, prometheus::Registry* registry,
             std::function<void()> on_beat, std::function<void()> on_failure)
    : config_(std::move(config)),
      on_beat_(std::move(on_beat)),
      on_failure_(std::move(on_failure)),
      daemon_metrics_(*registry, config_.self.version(), config_.self.node()),
      device_metrics_(*registry),
      rank_metrics_(*registry, config_.self.node()),
      line_(config_.coordinator),
      link_(std::make_unique<CoordinatorLink>(
          &line_, config_.self, &daemon_metrics_,
          CoordinatorLink::Told{.on_assignments = [this](v1::HeartbeatResponse r) { take_assignments(std::move(r)); },
                                .on_registered = [this] { drop_assignments(); },
                                .on_revoked = [this] { take_revocation(); }})),
      shipper_(std::make_unique<Shipper>(&line_, config_.self.node(), config_.shipper, &rank_metrics_, &daemon_metrics_,
                                         [this] { wake(); })),
      flights_(std::make_unique<FlightReporter>(&line_, config_.self.node())),
      probe_(config_.probe, *state, spawner, &device_metrics_, &clock_),
      table_(config_.ranks, state, spawner, shipper_.get(), &probe_, &rank_metrics_, &daemon_metrics_, &clock_) {
  shipper_->set_paces(&paces_);
  table_.set_paces(&paces_);
}

Agent::~Agent() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
  link_.reset();  // Its threads call into this object.
  flights_.reset();
  shipper_.reset();
}

void Agent::start() {
  table_.adopt();
  table_.tick().IgnoreError();  // Who died meanwhile is known before the first word. The loop meets the error again.
  link_->set_status(node_status(/*ending=*/false));
  thread_ = std::thread([this] { run(); });
  link_->start();
}

void Agent::run() {
  bool told_to_stop = false;
  while (true) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, config_.tick, [this] { return woken_; });
    woken_ = false;
    if (stopping_) return;
    const auto wish = wish_;
    const auto stop = stop_ranks_;
    const bool revoked = revoked_;
    const auto flights = std::exchange(flight_wishes_, {});
    const auto traces = std::exchange(trace_wishes_, {});
    lock.unlock();

    if (stop && !told_to_stop) {
      table_.start_no_more();
      const milliseconds longest = table_.stop_all(*stop);
      lock.lock();
      longest_grace_ = std::max(longest_grace_, longest);
      lock.unlock();
    }
    told_to_stop = stop.has_value();
    if (revoked) table_.stop_all(config_.revoked_grace);
    probe_.tick();
    if (wish) table_.reconcile(*wish);
    for (const v1::FlightWish& one : flights) {
      const RankKey key{one.job(), one.epoch(), one.rank()};
      if (const auto directory = table_.directory(key)) flights_->wish(key, *directory);
    }
    tell_ranks(traces);
    const absl::Status status = table_.tick();
    link_->set_status(node_status(stop.has_value()));
    on_beat_();

    lock.lock();
    status_ = status;
    stale_ = probe_.stale();
    over_ = stop && table_.all_over();
    wake_.notify_all();
    if (status.ok()) continue;
    lock.unlock();
    on_failure_();
    return;
  }
}

NodeStatus Agent::node_status(bool ending) const {
  NodeStatus status{table_.statuses(), probe_.health(), table_.receipts()};
  if (ending) status.leave = table_.nothing_left() ? v1::HeartbeatRequest::GONE : v1::HeartbeatRequest::ENDING;
  return status;
}

void Agent::tell_ranks(const std::vector<v1::TraceWish>& wishes) const {
  for (const v1::TraceWish& one : wishes) {
    const auto directory = table_.directory({one.job(), one.epoch(), one.rank()});
    if (!directory) continue;  // It comes again with the next answer.
    v1::RankWishes told;
    *told.mutable_trace_steps() = one.steps();
    if (const absl::Status status = directory->write_wishes(told); !status.ok()) {
      spdlog::warn("traces that are wanted: {}", std::string(status.message()));
    }
  }
}

void Agent::take_assignments(v1::HeartbeatResponse response) {
  const std::lock_guard lock(mutex_);
  wish_.emplace(response.assignments().begin(), response.assignments().end());
  flight_wishes_.assign(response.flights().begin(), response.flights().end());
  trace_wishes_.assign(response.traces().begin(), response.traces().end());
  woken_ = true;
  wake_.notify_all();
}

void Agent::drop_assignments() {
  const std::lock_guard lock(mutex_);
  revoked_ = false;
  wish_.reset();
  woken_ = true;
  wake_.notify_all();
}

void Agent::take_revocation() {
  const std::lock_guard lock(mutex_);
  if (!revoked_) spdlog::error("this node is revoked: its ranks stop, and none is started");
  revoked_ = true;
  wish_.reset();
  woken_ = true;
  wake_.notify_all();
}

void Agent::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  wake_.notify_all();
}

void Agent::stop_ranks(milliseconds grace) {
  std::unique_lock lock(mutex_);
  stop_ranks_ = longest_grace_ = grace;
  woken_ = true;
  wake_.notify_all();
  const auto start = std::chrono::steady_clock::now();
  while (!over_ && status_.ok()) {
    const auto end = start + longest_grace_ + kLastShipping;  // The loop may find a longer one, and says so.
    if (wake_.wait_until(lock, end) == std::cv_status::timeout && end == start + longest_grace_ + kLastShipping) {
      spdlog::warn("some ranks or their output remain; the next start of this daemon takes them over");
      return;
    }
  }
  if (!status_.ok()) return;  // Nobody knows what is left here.
  lock.unlock();
  if (!link_->wait_goodbye(kGoodbye)) {
    spdlog::warn("the coordinator did not hear that nothing is left here: it waits until the lease is over");
  }
}

absl::Status Agent::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

absl::Status Agent::readiness() const {
  const std::lock_guard lock(mutex_);
  if (!status_.ok() || !stale_) return status_;
  return absl::UnavailableError("telemetry is stale: the probe of the devices does not come back");
}

}  // namespace telar::agent
