#include "bench/service/workers.h"

#include <grpcpp/create_channel.h>

#include <condition_variable>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::bench {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class SimulatedWorkers::Worker final : public grpc::ClientBidiReactor<v1::HeartbeatRequest, v1::HeartbeatResponse> {
 public:
  Worker(SimulatedWorkers* owner, int number) : owner_(owner), name_(absl::StrCat("node-", number)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A connection of its own.
    stub_ = v1::Cluster::NewStub(
        grpc::CreateCustomChannel(owner->options_.coordinator, grpc::InsecureChannelCredentials(), arguments));
  }

  absl::Status enter() {
    v1::RegisterNodeRequest request;
    request.set_node(name_);
    request.set_incarnation("1");
    request.set_listen_host("127.0.0.1");
    for (int i = 0; i < owner_->options_.devices; ++i) {
      v1::Device* device = request.add_devices();
      device->set_kind(v1::ResourceSpec::CPU);
      device->set_index(static_cast<uint32_t>(i));
      device->set_model("cpu");
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    context.set_wait_for_ready(true);
    v1::RegisterNodeResponse response;
    const grpc::Status status = stub_->RegisterNode(&context, request, &response);
    if (!status.ok()) return absl::UnavailableError(absl::StrCat(name_, ": ", status.error_message()));
    registration_ = response.registration();
    stub_->async()->Heartbeat(&context_, this);
    AddHold();  // Writes are started by another thread than gRPC's.
    StartCall();
    StartRead(&response_);
    return absl::OkStatus();
  }

  // Sends what is due.
  void look(SteadyClock::time_point now) {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!broken_ && !writing_ && (changed_ || now >= next_beat_)) beat(now);
    const milliseconds step = owner_->options_.step;
    if (step.count() == 0) return;
    for (auto& [key, rank] : ranks_) {
      if (!rank.reporting && now >= rank.next_report) report(rank, now);
    }
  }
  size_t ranks() const {
    std::lock_guard<std::mutex> hold(mutex_);
    return ranks_.size();
  }
  void leave() {
    context_.TryCancel();
    std::unique_lock<std::mutex> hold(mutex_);
    all_done_.wait(hold, [this] { return over_ && reports_ == 0; });
  }

  void OnWriteDone(bool) override {
    std::lock_guard<std::mutex> hold(mutex_);
    writing_ = false;
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        std::lock_guard<std::mutex> hold(mutex_);
        broken_ = true;
      }
      RemoveHold();
      return;
    }
    {
      std::lock_guard<std::mutex> hold(mutex_);
      if (asked_ != SteadyClock::time_point()) owner_->latencies_->add("heartbeat", asked_, true);
      asked_ = SteadyClock::time_point();
      follow();
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status&) override {
    if (!owner_->stop_) ++owner_->lost_;
    std::lock_guard<std::mutex> hold(mutex_);
    over_ = true;
    all_done_.notify_all();
  }

 private:
  using Key = std::tuple<std::string, uint64_t, uint32_t>;
  struct Rank {
    v1::RankStatus status;
    uint64_t line = 0;
    bool reporting = false;
    SteadyClock::time_point next_report;
  };
  struct Report {
    grpc::ClientContext context;
    v1::ReportEventsRequest request;
    v1::ReportEventsResponse response;
  };

  void beat(SteadyClock::time_point now) {
    request_.set_node(name_);
    request_.set_incarnation("1");
    request_.set_registration(registration_);
    request_.set_sequence(++sequence_);
    request_.clear_ranks();
    for (const auto& [key, rank] : ranks_) *request_.add_ranks() = rank.status;
    writing_ = true;
    changed_ = false;
    next_beat_ = now + owner_->options_.heartbeat;
    asked_ = now;
    StartWrite(&request_);
  }

  void follow() {
    std::map<Key, Rank> named;
    for (const v1::Assignment& assignment : response_.assignments()) {
      const v1::RankPlan& plan = assignment.plan();
      const Key key{plan.job(), plan.epoch(), plan.rank()};
      const auto known = ranks_.find(key);
      Rank& rank = named[key];
      if (known != ranks_.end()) rank = known->second;
      const bool ends = assignment.desired() == v1::Assignment::STOP;
      if (known != ranks_.end() && !ends) continue;
      changed_ = true;
      rank.status.set_job(plan.job());
      rank.status.set_epoch(plan.epoch());
      rank.status.set_rank(plan.rank());
      rank.status.set_state(ends ? v1::RankPlacement::EXITED : v1::RankPlacement::RUNNING);
      rank.status.set_exit_code(ends ? 10 : 0);
      rank.status.set_output_shipped(ends);
      rank.next_report = SteadyClock::now() + owner_->options_.step;
    }
    ranks_ = std::move(named);
  }

  void report(Rank& rank, SteadyClock::time_point now) {
    rank.reporting = true;
    rank.next_report += owner_->options_.step;
    ++reports_;
    auto call = std::make_shared<Report>();  // Lives until gRPC has called back.
    call->request.set_node(name_);
    call->request.set_job(rank.status.job());
    call->request.set_epoch(rank.status.epoch());
    call->request.set_rank(rank.status.rank());
    call->request.set_first_line(rank.line);
    v1::StepReport* step = call->request.add_events()->mutable_step();
    step->set_step(rank.line + 1);
    step->set_loss(5);
    step->set_seconds(1);
    step->set_tokens_per_second(1e4);
    const Key key{rank.status.job(), rank.status.epoch(), rank.status.rank()};
    stub_->async()->ReportEvents(&call->context, &call->request, &call->response,
                                 [this, call, key, now](const grpc::Status& status) {
                                   owner_->latencies_->add("report", now, status.ok());
                                   std::lock_guard<std::mutex> hold(mutex_);
                                   if (const auto found = ranks_.find(key); found != ranks_.end()) {
                                     found->second.reporting = false;
                                     if (status.ok()) found->second.line = call->response.next_line();
                                   }
                                   --reports_;
                                   all_done_.notify_all();
                                 });
  }

  SimulatedWorkers* const owner_;
  const std::string name_;
  std::unique_ptr<v1::Cluster::Stub> stub_;
  uint64_t registration_ = 0;
  grpc::ClientContext context_;
  v1::HeartbeatRequest request_;
  v1::HeartbeatResponse response_;
  mutable std::mutex mutex_;  // Guards all below.
  std::condition_variable all_done_;
  std::map<Key, Rank> ranks_;
  uint64_t sequence_ = 0;
  bool writing_ = false;
  bool changed_ = true;
  bool broken_ = false;  // Nothing comes any more.
  bool over_ = false;    // gRPC is done with this.
  int reports_ = 0;      // Under way.
  SteadyClock::time_point next_beat_, asked_;
};

SimulatedWorkers::SimulatedWorkers(const WorkerOptions& options, Latencies* latencies)
    : options_(options), latencies_(latencies) {}

absl::StatusOr<std::unique_ptr<SimulatedWorkers>> SimulatedWorkers::start(const WorkerOptions& options,
                                                                          Latencies* latencies) {
  std::unique_ptr<SimulatedWorkers> all(new SimulatedWorkers(options, latencies));
  for (int i = 0; i < options.count; ++i) {
    auto worker = std::make_unique<Worker>(all.get(), i);
    if (absl::Status status = worker->enter(); !status.ok()) return status;
    all->workers_.push_back(std::move(worker));
    all->workers_.back()->look(SteadyClock::now());
  }
  all->thread_ = std::thread([owner = all.get()] { owner->drive(); });
  return all;
}

SimulatedWorkers::~SimulatedWorkers() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  for (const auto& worker : workers_) worker->leave();
}

void SimulatedWorkers::drive() {
  while (!stop_) {
    const auto now = SteadyClock::now();
    for (const auto& worker : workers_) worker->look(now);
    std::this_thread::sleep_until(now + milliseconds(10));
  }
}

size_t SimulatedWorkers::running_ranks() const {
  size_t count = 0;
  for (const auto& worker : workers_) count += worker->ranks();
  return count;
}

}  // namespace telar::bench
