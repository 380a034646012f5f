#include "server/rpc/cluster_service.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/errors.h"
#include "server/rpc/answer.h"

namespace telar::server::rpc {
namespace {

constexpr std::chrono::seconds kWorkerLook(10);  // Nothing is missed; should it be, it is not for ever.
// Our own answer, which names what is missing, should win against the caller's clock.
constexpr std::chrono::milliseconds kDeadlineMargin(200);

using Stream = grpc::ServerReaderWriter<v1::HeartbeatResponse, v1::HeartbeatRequest>;

// The answering side of one Heartbeat stream: answers each message, and sends new assignments unasked from a thread of
// its own. Tells the manager that the worker is connected while it lives.
class Session {
 public:
  Session(grpc::ServerContext* context, Stream* stream, jobs::JobManager* manager, const v1::HeartbeatRequest& first)
      : context_(context),
        stream_(stream),
        manager_(manager),
        node_(first.node()),
        incarnation_(first.incarnation()),
        changes_(manager->assignment_changes(node_)),
        thread_([this] { push(); }) {
    manager_->set_connected(node_, incarnation_, true);
  }
  ~Session() {
    done_ = true;
    changes_.notify();
    thread_.join();
    manager_->set_connected(node_, incarnation_, false);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  absl::Status handle(const v1::HeartbeatRequest& request) {
    if (request.node() != node_ || request.incarnation() != incarnation_) {
      return invalid({{"node", absl::StrCat("'", request.node(), "' on the stream of '", node_, "'")}});
    }
    if (absl::Status status = manager_->heartbeat(request); !status.ok()) return status;
    send(/*even_if_known=*/true);
    registered_ = true;
    return absl::OkStatus();
  }

 private:
  void send(bool even_if_known) {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!even_if_known && manager_->assignments_version(node_) == sent_) return;
    const v1::HeartbeatResponse response = manager_->assignments(node_);
    sent_ = response.version();
    stream_->Write(response);  // A broken stream shows at the next Read.
  }
  void push() {
    while (!done_) {
      const uint64_t seen = changes_.count();
      if (changes_.over()) {
        context_->TryCancel();  // Read would wait for a worker that has nothing to say.
        return;
      }
      if (registered_) send(/*even_if_known=*/false);
      changes_.wait(seen, kWorkerLook);
    }
  }

  grpc::ServerContext* const context_;
  Stream* const stream_;
  jobs::JobManager* const manager_;
  const std::string node_;
  const std::string incarnation_;
  jobs::ChangeSignal& changes_;  // Of this node's assignments.
  std::atomic<bool> done_{false};
  std::atomic<bool> registered_{false};  // The manager took a heartbeat of it.
  std::mutex mutex_;                     // One Write at a time.
  uint64_t sent_ = 0;                    // Version last sent; guarded by mutex_.
  std::thread thread_;                   // Last: it uses all of the above.
};

}  // namespace

grpc::Status ClusterService::RegisterNode(grpc::ServerContext*, const v1::RegisterNodeRequest* request,
                                          v1::RegisterNodeResponse* response) {
  const CallTimer timer(metrics_, "RegisterNode");
  return answer(manager_->register_node(*request), response);
}

grpc::Status ClusterService::Heartbeat(grpc::ServerContext* context, Stream* stream) {
  if (term_ != 0) context->AddInitialMetadata(kTermHeader, absl::StrCat(term_));
  v1::HeartbeatRequest request;
  if (!stream->Read(&request)) return grpc::Status::OK;
  const auto admitted = [&] { return guard_->check_node(auth::current_caller(), request.node()); };
  if (absl::Status status = admitted(); !status.ok()) return to_grpc(status);
  Session session(context, stream, manager_, request);
  do {
    const CallTimer timer(metrics_, "Heartbeat");
    if (absl::Status status = admitted(); !status.ok()) return to_grpc(status);
    if (absl::Status status = session.handle(request); !status.ok()) return to_grpc(status);
    if (request.leave() == v1::HeartbeatRequest::GONE) return grpc::Status::OK;
  } while (stream->Read(&request));
  return grpc::Status::OK;
}

grpc::Status ClusterService::AppendLog(grpc::ServerContext*, const v1::AppendLogRequest* request,
                                       v1::AppendLogResponse* response) {
  const CallTimer timer(metrics_, "AppendLog");
  return answer(manager_->append_log(*request), response);
}

grpc::Status ClusterService::ReportEvents(grpc::ServerContext*, const v1::ReportEventsRequest* request,
                                          v1::ReportEventsResponse* response) {
  const CallTimer timer(metrics_, "ReportEvents");
  return answer(manager_->report_events(*request), response);
}

grpc::Status ClusterService::ReportFlight(grpc::ServerContext*, const v1::ReportFlightRequest* request,
                                          v1::ReportFlightResponse*) {
  const CallTimer timer(metrics_, "ReportFlight");
  return to_grpc(manager_->report_flight(*request));
}

grpc::Status RendezvousService::PutKey(grpc::ServerContext*, const v1::PutKeyRequest* request, v1::PutKeyResponse*) {
  const CallTimer timer(metrics_, "PutKey");
  return to_grpc(rendezvous_->put(request->job(), request->epoch(), request->key(), request->value()));
}

grpc::Status RendezvousService::GetKeys(grpc::ServerContext* context, const v1::GetKeysRequest* request,
                                        v1::GetKeysResponse* response) {
  // gRPC tells the deadline by the wall's clock, which may be set while we wait.
  const std::chrono::steady_clock::duration left = context->deadline() - std::chrono::system_clock::now();
  const auto margin = std::min<std::chrono::steady_clock::duration>(kDeadlineMargin, left / 10);
  const auto deadline = std::chrono::steady_clock::now() + left - margin;
  auto values = rendezvous_->get(request->job(), request->epoch(), {request->keys().begin(), request->keys().end()},
                                 deadline, [context] { return context->IsCancelled(); });
  if (!values.ok()) return to_grpc(values.status());
  for (std::string& value : *values) response->add_values(std::move(value));
  return grpc::Status::OK;
}

grpc::Status RendezvousService::ReadClock(grpc::ServerContext*, const v1::ReadClockRequest*,
                                          v1::ReadClockResponse* response) {
  const auto now = [this] { return std::chrono::duration<double>(clock_.now().time_since_epoch()).count(); };
  response->set_received_seconds(now());
  response->set_clock(clock_name_);
  response->set_replied_seconds(now());
  return grpc::Status::OK;
}

grpc::Status CheckpointsService::CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                                  v1::CommitCheckpointResponse*) {
  const CallTimer timer(metrics_, "CommitCheckpoint");
  return to_grpc(manager_->commit_checkpoint(request->job(), request->epoch(), request->step()));
}

grpc::Status CheckpointsService::LastCommit(grpc::ServerContext*, const v1::LastCommitRequest* request,
                                            v1::LastCommitResponse* response) {
  const CallTimer timer(metrics_, "LastCommit");
  const auto last = manager_->last_commit(request->job(), request->epoch());
  if (!last.ok()) return to_grpc(last.status());
  if (!last->has_value()) return grpc::Status::OK;
  response->set_any(true);
  response->set_epoch((*last)->epoch);
  response->set_step((*last)->step);
  return grpc::Status::OK;
}

}  // namespace telar::server::rpc
