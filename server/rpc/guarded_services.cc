#include "server/rpc/guarded_services.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/errors.h"

namespace telar::server::rpc {
namespace {

using auth::Caller;
using auth::Guard;
using grpc::ServerContext;
using grpc::Status;

std::string text(grpc::string_ref one) { return std::string(one.data(), one.size()); }

auth::Peer peer_of(const ServerContext& context) {
  auth::Peer peer;
  peer.address = context.peer();
  const std::shared_ptr<const grpc::AuthContext> facts = context.auth_context();
  if (facts != nullptr) {
    for (const grpc::string_ref& uri : facts->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      peer.uris.push_back(text(uri));
    }
    for (const grpc::string_ref& pem : facts->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME)) {
      peer.certificate = text(pem);
    }
  }
  const auto found = context.client_metadata().find("authorization");
  if (found != context.client_metadata().end()) peer.authorization = text(found->second);
  return peer;
}

// Runs `call` as the caller, if the guard lets it in.
template <typename Call>
Status enter(Guard* guard, const char* method, ServerContext* context, const google::protobuf::Message* request,
             std::function<void()> end_stream, Call call) {
  auth::Visit visit(guard, peer_of(*context), method, request, std::move(end_stream));
  Status status = to_grpc(visit.status());
  if (status.ok()) {
    const auth::CallerScope scope(visit.caller());
    status = call(visit);
  }
  visit.end(from_grpc(status));
  return status;
}

template <typename Service, typename Request, typename Response>
Status unary(Guard* guard, const char* method, Service* inner,
             Status (Service::*call)(ServerContext*, const Request*, Response*), ServerContext* context,
             const Request* request, Response* response) {
  return enter(guard, method, context, request, {}, [&](auth::Visit& visit) {
    const Status status = (inner->*call)(context, request, response);
    if constexpr (std::is_same_v<Response, v1::Job>) {
      if (status.ok() && !response->name().empty()) visit.set_resource(response->name());
    } else if constexpr (std::is_same_v<Response, v1::CreateJobArrayResponse>) {
      const bool made = status.ok() && !response->jobs().empty() && !response->jobs(0).array().empty();
      if (made) visit.set_resource(response->jobs(0).array());
    }
    return status;
  });
}

template <typename Service, typename Request, typename Response>
Status server_stream(Guard* guard, const char* method, Service* inner,
                     Status (Service::*call)(ServerContext*, const Request*, grpc::ServerWriter<Response>*),
                     ServerContext* context, const Request* request, grpc::ServerWriter<Response>* writer) {
  return enter(
      guard, method, context, request, [context] { context->TryCancel(); },
      [&](auth::Visit&) { return (inner->*call)(context, request, writer); });
}

// Of all projects: those that the caller may view. A page may so have fewer jobs than was asked for.
void keep_visible(const Caller& caller, v1::ListJobsResponse& response) {
  if (caller.kind != Caller::Kind::kPerson) return;
  v1::ListJobsResponse kept;
  for (v1::Job& job : *response.mutable_jobs()) {
    const std::vector<std::string> parts = absl::StrSplit(job.name(), '/');
    if (parts.size() > 1 && caller.role_in(parts[1]) >= auth::Role::kViewer) *kept.add_jobs() = std::move(job);
  }
  response.mutable_jobs()->Swap(kept.mutable_jobs());
}

}  // namespace

Status GuardedJobs::ListJobs(ServerContext* context, const v1::ListJobsRequest* request,
                             v1::ListJobsResponse* response) {
  return enter(guard_, "telar.v1.Jobs/ListJobs", context, request, {}, [&](auth::Visit& visit) {
    const Status status = inner_->ListJobs(context, request, response);
    if (status.ok()) keep_visible(visit.caller(), *response);
    return status;
  });
}

Status GuardedJobs::WatchJob(ServerContext* context, const v1::WatchJobRequest* request,
                             grpc::ServerWriter<v1::WatchJobResponse>* writer) {
  return server_stream(guard_, "telar.v1.Jobs/WatchJob", inner_, &v1::Jobs::Service::WatchJob, context, request,
                       writer);
}

Status GuardedJobs::ReadLog(ServerContext* context, const v1::ReadLogRequest* request,
                            grpc::ServerWriter<v1::LogChunk>* writer) {
  return server_stream(guard_, "telar.v1.Jobs/ReadLog", inner_, &v1::Jobs::Service::ReadLog, context, request, writer);
}

Status GuardedJobs::TraceJob(ServerContext* context, const v1::TraceJobRequest* request, v1::Job* job) {
  return unary(guard_, "telar.v1.Jobs/TraceJob", inner_, &v1::Jobs::Service::TraceJob, context, request, job);
}

Status GuardedJobs::ReadTrace(ServerContext* context, const v1::ReadTraceRequest* request,
                              grpc::ServerWriter<v1::TraceChunk>* writer) {
  return server_stream(guard_, "telar.v1.Jobs/ReadTrace", inner_, &v1::Jobs::Service::ReadTrace, context, request,
                       writer);
}

Status GuardedCluster::Heartbeat(ServerContext* context,
                                 grpc::ServerReaderWriter<v1::HeartbeatResponse, v1::HeartbeatRequest>* stream) {
  return enter(guard_, "telar.v1.Cluster/Heartbeat", context, nullptr, {},
               [&](auth::Visit&) { return inner_->Heartbeat(context, stream); });
}

Status GuardedJobs::CreateJob(ServerContext* context, const v1::CreateJobRequest* request, v1::Job* job) {
  return unary(guard_, "telar.v1.Jobs/CreateJob", inner_, &v1::Jobs::Service::CreateJob, context, request, job);
}

Status GuardedJobs::GetJob(ServerContext* context, const v1::GetJobRequest* request, v1::Job* job) {
  return unary(guard_, "telar.v1.Jobs/GetJob", inner_, &v1::Jobs::Service::GetJob, context, request, job);
}

Status GuardedJobs::CancelJob(ServerContext* context, const v1::CancelJobRequest* request, v1::Job* job) {
  return unary(guard_, "telar.v1.Jobs/CancelJob", inner_, &v1::Jobs::Service::CancelJob, context, request, job);
}

Status GuardedJobs::CreateJobArray(ServerContext* context, const v1::CreateJobArrayRequest* request,
                                   v1::CreateJobArrayResponse* response) {
  return unary(guard_, "telar.v1.Jobs/CreateJobArray", inner_, &v1::Jobs::Service::CreateJobArray, context, request,
               response);
}

Status GuardedJobs::UpdateJob(ServerContext* context, const v1::UpdateJobRequest* request, v1::Job* job) {
  return unary(guard_, "telar.v1.Jobs/UpdateJob", inner_, &v1::Jobs::Service::UpdateJob, context, request, job);
}

Status GuardedJobs::ListQueues(ServerContext* context, const v1::ListQueuesRequest* request,
                               v1::ListQueuesResponse* response) {
  return unary(guard_, "telar.v1.Jobs/ListQueues", inner_, &v1::Jobs::Service::ListQueues, context, request, response);
}

Status GuardedJobs::ListNodes(ServerContext* context, const v1::ListNodesRequest* request,
                              v1::ListNodesResponse* response) {
  return unary(guard_, "telar.v1.Jobs/ListNodes", inner_, &v1::Jobs::Service::ListNodes, context, request, response);
}

Status GuardedJobs::GetVersion(ServerContext* context, const v1::GetVersionRequest* request, v1::Version* response) {
  return unary(guard_, "telar.v1.Jobs/GetVersion", inner_, &v1::Jobs::Service::GetVersion, context, request, response);
}

Status GuardedNodes::CordonNode(ServerContext* context, const v1::CordonNodeRequest* request, v1::Node* node) {
  return unary(guard_, "telar.v1.Nodes/CordonNode", inner_, &v1::Nodes::Service::CordonNode, context, request, node);
}

Status GuardedNodes::UncordonNode(ServerContext* context, const v1::UncordonNodeRequest* request, v1::Node* node) {
  return unary(guard_, "telar.v1.Nodes/UncordonNode", inner_, &v1::Nodes::Service::UncordonNode, context, request,
               node);
}

Status GuardedNodes::DrainNode(ServerContext* context, const v1::DrainNodeRequest* request, v1::Node* node) {
  return unary(guard_, "telar.v1.Nodes/DrainNode", inner_, &v1::Nodes::Service::DrainNode, context, request, node);
}

Status GuardedNodes::ReleaseDevice(ServerContext* context, const v1::ReleaseDeviceRequest* request, v1::Node* node) {
  return unary(guard_, "telar.v1.Nodes/ReleaseDevice", inner_, &v1::Nodes::Service::ReleaseDevice, context, request,
               node);
}

Status GuardedCluster::RegisterNode(ServerContext* context, const v1::RegisterNodeRequest* request,
                                    v1::RegisterNodeResponse* response) {
  return unary(guard_, "telar.v1.Cluster/RegisterNode", inner_, &v1::Cluster::Service::RegisterNode, context, request,
               response);
}

Status GuardedCluster::AppendLog(ServerContext* context, const v1::AppendLogRequest* request,
                                 v1::AppendLogResponse* response) {
  return unary(guard_, "telar.v1.Cluster/AppendLog", inner_, &v1::Cluster::Service::AppendLog, context, request,
               response);
}

Status GuardedCluster::ReportEvents(ServerContext* context, const v1::ReportEventsRequest* request,
                                    v1::ReportEventsResponse* response) {
  return unary(guard_, "telar.v1.Cluster/ReportEvents", inner_, &v1::Cluster::Service::ReportEvents, context, request,
               response);
}

Status GuardedCluster::ReportFlight(ServerContext* context, const v1::ReportFlightRequest* request,
                                    v1::ReportFlightResponse* response) {
  return unary(guard_, "telar.v1.Cluster/ReportFlight", inner_, &v1::Cluster::Service::ReportFlight, context, request,
               response);
}

Status GuardedRendezvous::PutKey(ServerContext* context, const v1::PutKeyRequest* request,
                                 v1::PutKeyResponse* response) {
  return unary(guard_, "telar.v1.Rendezvous/PutKey", inner_, &v1::Rendezvous::Service::PutKey, context, request,
               response);
}

Status GuardedRendezvous::GetKeys(ServerContext* context, const v1::GetKeysRequest* request,
                                  v1::GetKeysResponse* response) {
  return unary(guard_, "telar.v1.Rendezvous/GetKeys", inner_, &v1::Rendezvous::Service::GetKeys, context, request,
               response);
}

Status GuardedRendezvous::ReadClock(ServerContext* context, const v1::ReadClockRequest* request,
                                    v1::ReadClockResponse* response) {
  return unary(guard_, "telar.v1.Rendezvous/ReadClock", inner_, &v1::Rendezvous::Service::ReadClock, context, request,
               response);
}

Status GuardedCheckpoints::CommitCheckpoint(ServerContext* context, const v1::CommitCheckpointRequest* request,
                                            v1::CommitCheckpointResponse* response) {
  return unary(guard_, "telar.v1.Checkpoints/CommitCheckpoint", inner_, &v1::Checkpoints::Service::CommitCheckpoint,
               context, request, response);
}

Status GuardedCheckpoints::LastCommit(ServerContext* context, const v1::LastCommitRequest* request,
                                      v1::LastCommitResponse* response) {
  return unary(guard_, "telar.v1.Checkpoints/LastCommit", inner_, &v1::Checkpoints::Service::LastCommit, context,
               request, response);
}

}  // namespace telar::server::rpc
