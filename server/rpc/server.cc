#include "server/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "server/rpc/services.h"

namespace telar::server::rpc {
namespace {

constexpr std::chrono::milliseconds kLastCalls(700);
constexpr int kMostRequest = 4 << 20;  // Each method has its own limit below this: server/auth/access.cc.

std::unique_ptr<auth::Guard> open_door(const auth::Guard* given) {
  static const RealClock kClock;
  if (given != nullptr) return nullptr;
  return *auth::Guard::open({}, &kClock,
                            [](const std::string&) { return absl::NotFoundError(""); });  // No file: no error.
}

}  // namespace

Server::Server(const ServerOptions& options, jobs::JobManager* manager, Metrics* metrics, auth::Guard* guard)
    : manager_(manager),
      open_door_(open_door(guard)),
      guard_(guard == nullptr ? open_door_.get() : guard),
      rendezvous_({.put = [manager](const auto&... arguments) { return manager->put_key(arguments...); },
                   .all = [manager](const auto&... arguments) { return manager->keys(arguments...); }}),
      jobs_(manager, metrics, options.stream_heartbeat),
      nodes_(manager, metrics),
      cluster_(manager, metrics, guard_, options.term),
      rendezvous_service_(&rendezvous_, metrics),
      checkpoints_(manager, metrics),
      guarded_jobs_(guard_, &jobs_),
      guarded_nodes_(guard_, &nodes_),
      guarded_cluster_(guard_, &cluster_),
      guarded_rendezvous_(guard_, &rendezvous_service_),
      guarded_checkpoints_(guard_, &checkpoints_) {}

Server::~Server() { stop(); }

absl::StatusOr<std::unique_ptr<Server>> Server::start(const ServerOptions& options, jobs::JobManager* manager,
                                                      Metrics* metrics, auth::Guard* guard) {
  std::unique_ptr<Server> server(new Server(options, manager, metrics, guard));
  if (absl::Status status = server->bind(options); !status.ok()) return status;
  server->set_health(true);
  return server;
}

absl::Status Server::bind(const ServerOptions& options) {
  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  set_keepalive(builder);
  // Two coordinators on one port would share its connections, each with half of the cluster.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMostRequest);
  int port = 0;
  builder.AddListeningPort(
      options.listen, options.tls.any() ? server_credentials(options.tls) : grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : std::initializer_list<grpc::Service*>{
           &guarded_jobs_, &guarded_nodes_, &guarded_cluster_, &guarded_rendezvous_, &guarded_checkpoints_}) {
    builder.RegisterService(service);
  }
  server_ = builder.BuildAndStart();
  if (!server_ || port == 0) return cannot_listen(options.listen);
  address_ = absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port);
  return absl::OkStatus();
}

void Server::set_health(bool serving) { rpc::set_health(*server_, serving); }

void Server::stop() {
  if (!server_) return;
  set_health(false);
  manager_->shut_down();
  rendezvous_.shut_down();
  server_->Shutdown(std::chrono::system_clock::now() + kLastCalls);
  server_->Wait();
  server_.reset();
}

}  // namespace telar::server::rpc
