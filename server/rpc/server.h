// The gRPC side of the coordinator: services, health, reflection, one port.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <grpcpp/server.h>

#include "absl/status/statusor.h"
#include "common/tls.h"
#include "server/auth/guard.h"
#include "server/jobs/job_manager.h"
#include "server/rpc/cluster_service.h"
#include "server/rpc/guarded_services.h"
#include "server/rpc/jobs_service.h"
#include "server/rpc/metrics.h"
#include "server/rpc/nodes_service.h"
#include "server/rpc/rendezvous.h"

namespace telar::server::rpc {

struct ServerOptions {
  std::string listen;  // host:port; port 0 takes a free one.
  bool reflection = true;
  std::chrono::milliseconds stream_heartbeat{5'000};
  TlsFiles tls;       // Empty: in plain text.
  uint64_t term = 0;  // Of the leadership; 0: nobody stands in for this one. Workers are told.
};

class Server {
 public:
  // Health is SERVING when this returns: start it after the replay. ALREADY_EXISTS names the port that cannot be had.
  // `manager`, `metrics` and `guard` must outlive the server. Without a guard everybody may do everything.
  static absl::StatusOr<std::unique_ptr<Server>> start(const ServerOptions& options, jobs::JobManager* manager,
                                                       Metrics* metrics, auth::Guard* guard = nullptr);
  ~Server();

  const std::string& address() const { return address_; }  // With the port that it got.
  // Health says NOT_SERVING, streams end with UNAVAILABLE, then calls; returns within about a second.
  void stop();

 private:
  Server(const ServerOptions& options, jobs::JobManager* manager, Metrics* metrics, auth::Guard* guard);
  absl::Status bind(const ServerOptions& options);
  void set_health(bool serving);

  jobs::JobManager* const manager_;
  const std::unique_ptr<auth::Guard> open_door_;  // Where no guard was given.
  auth::Guard* const guard_;
  Rendezvous rendezvous_;
  JobsService jobs_;
  NodesService nodes_;
  ClusterService cluster_;
  RendezvousService rendezvous_service_;
  CheckpointsService checkpoints_;
  // What gRPC calls: each of the above behind the guard.
  Guarded<v1::Jobs> guarded_jobs_;
  Guarded<v1::Nodes> guarded_nodes_;
  Guarded<v1::Cluster> guarded_cluster_;
  Guarded<v1::Rendezvous> guarded_rendezvous_;
  Guarded<v1::Checkpoints> guarded_checkpoints_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace telar::server::rpc
