#include "server/rpc/guarded_services.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"

namespace telar::server::rpc {
namespace {

using auth::Caller;
using auth::Guard;
using grpc::ServerContext;
using grpc::Status;
using grpc::internal::RpcMethod;
using Lite = grpc::protobuf::MessageLite;
using Method = grpc::internal::RpcServiceMethod;

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

// What the answer tells of the call: what was made, for the audit log, and what the caller may not see goes.
template <typename Response>
void look_at(auth::Visit& visit, Response& response) {
  if constexpr (std::is_same_v<Response, v1::Job>) {
    if (!response.name().empty()) visit.set_resource(response.name());
  } else if constexpr (std::is_same_v<Response, v1::CreateJobArrayResponse>) {
    const bool made = !response.jobs().empty() && !response.jobs(0).array().empty();
    if (made) visit.set_resource(response.jobs(0).array());
  } else if constexpr (std::is_same_v<Response, v1::ListJobsResponse>) {
    keep_visible(visit.caller(), response);
  }
}

}  // namespace

template <typename Contract>
const char* Guarded<Contract>::path_of(const char* name) {
  return paths_.emplace_back(absl::StrCat("/", Contract::service_full_name(), "/", name)).c_str();
}

template <typename Contract>
template <typename Request, typename Response>
void Guarded<Contract>::unary(const char* name, Status (Inner::*method)(ServerContext*, const Request*, Response*)) {
  using Handler = grpc::internal::RpcMethodHandler<Inner, Request, Response, Lite, Lite>;
  const char* const path = path_of(name);
  const auto call = [this, path, method](Inner* inner, ServerContext* context, const Request* request,
                                         Response* response) {
    return enter(guard_, path + 1, context, request, {}, [&](auth::Visit& visit) {
      const Status status = (inner->*method)(context, request, response);
      if (status.ok()) look_at(visit, *response);
      return status;
    });
  };
  AddMethod(new Method(path, RpcMethod::NORMAL_RPC, new Handler(call, inner_)));
}

template <typename Contract>
template <typename Request, typename Response>
void Guarded<Contract>::server_stream(const char* name, Status (Inner::*method)(ServerContext*, const Request*,
                                                                                grpc::ServerWriter<Response>*)) {
  const char* const path = path_of(name);
  const auto call = [this, path, method](Inner* inner, ServerContext* context, const Request* request,
                                         grpc::ServerWriter<Response>* writer) {
    return enter(
        guard_, path + 1, context, request, [context] { context->TryCancel(); },
        [&](auth::Visit&) { return (inner->*method)(context, request, writer); });
  };
  AddMethod(new Method(path, RpcMethod::SERVER_STREAMING,
                       new grpc::internal::ServerStreamingHandler<Inner, Request, Response>(call, inner_)));
}

template <typename Contract>
template <typename Request, typename Response>
void Guarded<Contract>::both_stream(const char* name,
                                    Status (Inner::*method)(ServerContext*,
                                                            grpc::ServerReaderWriter<Response, Request>*)) {
  const char* const path = path_of(name);
  const auto call = [this, path, method](Inner* inner, ServerContext* context,
                                         grpc::ServerReaderWriter<Response, Request>* stream) {
    return enter(guard_, path + 1, context, nullptr, {},
                 [&](auth::Visit&) { return (inner->*method)(context, stream); });
  };
  AddMethod(new Method(path, RpcMethod::BIDI_STREAMING,
                       new grpc::internal::BidiStreamingHandler<Inner, Request, Response>(call, inner_)));
}

template <>
Guarded<v1::Jobs>::Guarded(Guard* guard, Inner* inner) : guard_(guard), inner_(inner) {
  unary("CreateJob", &Inner::CreateJob);
  unary("GetJob", &Inner::GetJob);
  unary("ListJobs", &Inner::ListJobs);
  unary("CancelJob", &Inner::CancelJob);
  unary("CreateJobArray", &Inner::CreateJobArray);
  unary("UpdateJob", &Inner::UpdateJob);
  unary("ListQueues", &Inner::ListQueues);
  server_stream("WatchJob", &Inner::WatchJob);
  server_stream("ReadLog", &Inner::ReadLog);
  unary("TraceJob", &Inner::TraceJob);
  server_stream("ReadTrace", &Inner::ReadTrace);
  unary("ListNodes", &Inner::ListNodes);
  unary("GetVersion", &Inner::GetVersion);
}

template <>
Guarded<v1::Nodes>::Guarded(Guard* guard, Inner* inner) : guard_(guard), inner_(inner) {
  unary("CordonNode", &Inner::CordonNode);
  unary("UncordonNode", &Inner::UncordonNode);
  unary("DrainNode", &Inner::DrainNode);
  unary("ReleaseDevice", &Inner::ReleaseDevice);
}

template <>
Guarded<v1::Cluster>::Guarded(Guard* guard, Inner* inner) : guard_(guard), inner_(inner) {
  unary("RegisterNode", &Inner::RegisterNode);
  both_stream("Heartbeat", &Inner::Heartbeat);
  unary("AppendLog", &Inner::AppendLog);
  unary("ReportEvents", &Inner::ReportEvents);
  unary("ReportFlight", &Inner::ReportFlight);
}

template <>
Guarded<v1::Rendezvous>::Guarded(Guard* guard, Inner* inner) : guard_(guard), inner_(inner) {
  unary("PutKey", &Inner::PutKey);
  unary("GetKeys", &Inner::GetKeys);
  unary("ReadClock", &Inner::ReadClock);
}

template <>
Guarded<v1::Checkpoints>::Guarded(Guard* guard, Inner* inner) : guard_(guard), inner_(inner) {
  unary("CommitCheckpoint", &Inner::CommitCheckpoint);
  unary("LastCommit", &Inner::LastCommit);
}

}  // namespace telar::server::rpc
