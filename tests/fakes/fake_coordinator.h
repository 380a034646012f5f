// A coordinator that does as a test says and remembers what workers sent: a real gRPC service on a port of its own.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/util/time_util.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "common/channel.h"
#include "common/errors.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::fakes {

// Thread safe. What it knows stays over stop() and start(), as a real one's store does.
class FakeCoordinator final : public v1::Cluster::Service {
 public:
  using RankId = std::pair<uint64_t, uint32_t>;  // Epoch and rank; tests here have one job.
  struct Output {
    std::string log;
    std::vector<v1::RankEvent> events;
    int log_gaps = 0, event_gaps = 0;  // A worker skipped something.
    uint64_t missing = 0;              // Bytes that it told of as lost; zeros in `log`.
  };

  FakeCoordinator() { start(); }
  ~FakeCoordinator() override { stop(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void start() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = false;
    }
    grpc::ServerBuilder builder;
    set_keepalive(builder);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  // As of a coordinator that others stand in for; for streams from now on.
  void set_term(uint64_t term) { set(term_, term); }
  void assign(std::vector<v1::Assignment> assignments) {
    const std::lock_guard lock(mutex_);
    assignments_ = std::move(assignments);
    ++version_;
    changed_.notify_all();
  }
  // Asks for the flight records of these ranks, or wants traces of them, with every answer.
  void wish(std::vector<v1::FlightWish> flights, std::vector<v1::TraceWish> traces = {}) {
    const std::lock_guard lock(mutex_);
    flights_ = std::move(flights);
    traces_ = std::move(traces);
    ++version_;
    changed_.notify_all();
  }
  // Heartbeats are taken, and not answered.
  void fall_silent(bool silent) { set(silent_, silent); }
  // Output of this epoch is refused with FAILED_PRECONDITION from now on.
  void end_epoch(uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    ended_.insert(epoch);
  }
  // The node is revoked, or not any more: streams end, and it may not register.
  void revoke(bool revoked) { set(revoked_, revoked); }
  // There is no room for logs.
  void set_full(bool full) { set(full_, full); }
  // Waits until the condition holds on what is known; false after `longest`.
  bool wait(const std::function<bool(const FakeCoordinator&)>& condition,
            std::chrono::milliseconds longest = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, longest, [&] { return condition(*this); });
  }
  // The next six inside wait()'s condition, or through locked().
  const v1::RankStatus* status(uint64_t epoch, uint32_t rank = 0) const {
    return find(last_.ranks(), [=](const auto& one) { return one.epoch() == epoch && one.rank() == rank; });
  }
  const v1::Receipt* receipt(uint64_t epoch) const {
    return find(last_.receipts(), [=](const auto& one) { return one.epoch() == epoch; });
  }
  const v1::DeviceHealth* health(uint32_t index) const {
    return find(last_.health(), [=](const auto& one) { return one.device().index() == index; });
  }
  const Output& output(uint64_t epoch, uint32_t rank = 0) const {
    static const Output kNone;
    const auto found = outputs_.find({epoch, rank});
    return found == outputs_.end() ? kNone : found->second;
  }
  const std::vector<v1::ReportFlightRequest>& flight_reports() const { return flight_reports_; }
  const std::vector<v1::RegisterNodeRequest>& registrations() const { return registrations_; }
  const std::vector<std::string>& peers() const { return peers_; }  // Where the registrations came from.
  const std::vector<v1::HeartbeatRequest>& heartbeats() const { return heartbeats_; }
  template <typename Function>
  auto locked(Function function) {
    const std::lock_guard lock(mutex_);
    return function(*this);
  }

 private:
  template <typename List, typename Wanted>
  static const typename List::value_type* find(const List& list, Wanted wanted) {
    const auto found = std::find_if(list.begin(), list.end(), wanted);
    return found == list.end() ? nullptr : &*found;
  }
  template <typename Value>
  void set(Value& member, Value value) {
    const std::lock_guard lock(mutex_);
    member = value;
  }
  grpc::Status RegisterNode(grpc::ServerContext* context, const v1::RegisterNodeRequest* request,
                            v1::RegisterNodeResponse* response) override {
    using google::protobuf::util::TimeUtil;
    const std::lock_guard lock(mutex_);
    if (revoked_) return to_grpc(error(absl::StatusCode::kPermissionDenied, "REVOKED", "node a is revoked"));
    registrations_.push_back(*request);
    peers_.push_back(context->peer());
    *response->mutable_heartbeat_interval() = TimeUtil::MillisecondsToDuration(200);
    *response->mutable_lease() = TimeUtil::MillisecondsToDuration(2000);
    response->set_registration(registrations_.size());
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext* context,
                         grpc::ServerReaderWriter<v1::HeartbeatResponse, v1::HeartbeatRequest>* stream) override {
    {
      const std::lock_guard lock(mutex_);
      if (term_ != 0) context->AddInitialMetadata(kTermHeader, std::to_string(term_));
    }
    v1::HeartbeatRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    bool over = false;        // Guarded by mutex_.
    std::thread pusher([&] {  // Changes go out unasked.
      std::unique_lock lock(mutex_);
      for (uint64_t sent = version_; true; sent = version_) {
        changed_.wait(lock, [&] { return stopping_ || over || context->IsCancelled() || version_ != sent; });
        if (stopping_ || over || context->IsCancelled()) return;
        if (!stream->Write(answer())) return;
      }
    });
    do {
      const std::lock_guard lock(mutex_);
      if (revoked_) break;
      last_ = request;
      heartbeats_.push_back(request);
      changed_.notify_all();
      if (!silent_) stream->Write(answer());
    } while (request.leave() != v1::HeartbeatRequest::GONE && stream->Read(&request));
    {
      const std::lock_guard lock(mutex_);
      over = true;
      changed_.notify_all();
    }
    pusher.join();
    return grpc::Status::OK;
  }

  grpc::Status AppendLog(grpc::ServerContext*, const v1::AppendLogRequest* request,
                         v1::AppendLogResponse* response) override {
    const std::lock_guard lock(mutex_);
    if (ended_.count(request->epoch()) != 0) return {grpc::StatusCode::FAILED_PRECONDITION, "the epoch is over"};
    Output& output = outputs_[{request->epoch(), request->rank()}];
    if (request->data().size() > 65536) return {grpc::StatusCode::INVALID_ARGUMENT, "data: over 64 KiB"};
    if (request->offset() > output.log.size()) ++output.log_gaps;
    if (full_) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "no room"};
    if (request->missing() > 0 && request->offset() == output.log.size()) {
      output.missing += request->missing();
      output.log.append(request->missing(), '\0');
    } else if (request->offset() <= output.log.size()) {
      const size_t held = output.log.size() - request->offset();
      if (held < request->data().size()) output.log += request->data().substr(held);
    }
    response->set_next_offset(output.log.size());
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status ReportEvents(grpc::ServerContext*, const v1::ReportEventsRequest* request,
                            v1::ReportEventsResponse* response) override {
    const std::lock_guard lock(mutex_);
    if (ended_.count(request->epoch()) != 0) return {grpc::StatusCode::FAILED_PRECONDITION, "the epoch is over"};
    Output& output = outputs_[{request->epoch(), request->rank()}];
    if (request->first_line() > output.events.size()) ++output.event_gaps;
    for (size_t line = request->first_line(), i = 0; i < static_cast<size_t>(request->events_size()); ++line, ++i) {
      if (line == output.events.size()) output.events.push_back(request->events(static_cast<int>(i)));
    }
    response->set_next_line(output.events.size());
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status ReportFlight(grpc::ServerContext*, const v1::ReportFlightRequest* request,
                            v1::ReportFlightResponse*) override {
    const std::lock_guard lock(mutex_);
    flight_reports_.push_back(*request);
    changed_.notify_all();
    return grpc::Status::OK;
  }

  v1::HeartbeatResponse answer() const {  // With mutex_ held.
    v1::HeartbeatResponse response;
    response.set_version(version_);
    response.mutable_assignments()->Assign(assignments_.begin(), assignments_.end());
    response.mutable_flights()->Assign(flights_.begin(), flights_.end());
    response.mutable_traces()->Assign(traces_.begin(), traces_.end());
    return response;
  }

  std::mutex mutex_;  // Guards all below; also the writes of a stream, of which there is one here.
  std::condition_variable changed_;
  bool stopping_ = false, silent_ = false, revoked_ = false;
  uint64_t version_ = 1;
  uint64_t term_ = 0;
  std::vector<v1::Assignment> assignments_;
  std::vector<v1::FlightWish> flights_;
  std::vector<v1::TraceWish> traces_;
  std::vector<v1::ReportFlightRequest> flight_reports_;
  std::set<uint64_t> ended_;
  bool full_ = false;
  std::map<RankId, Output> outputs_;
  std::vector<v1::RegisterNodeRequest> registrations_;
  std::vector<std::string> peers_;
  std::vector<v1::HeartbeatRequest> heartbeats_;
  v1::HeartbeatRequest last_;
  int port_ = 0;  // The same again after a restart.
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace telar::fakes
