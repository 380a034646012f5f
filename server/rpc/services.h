// What the server of a leader and that of a standby have in common.
#pragma once

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace telar::server::rpc {

inline constexpr const char* kServices[] = {"telar.v1.Jobs", "telar.v1.Nodes", "telar.v1.Cluster",
                                            "telar.v1.Rendezvous", "telar.v1.Checkpoints"};

inline void set_health(grpc::Server& server, bool serving) {
  grpc::HealthCheckServiceInterface* health = server.GetHealthCheckService();
  if (health == nullptr) return;
  for (const char* service : kServices) health->SetServingStatus(service, serving);
  health->SetServingStatus(serving);
}

inline absl::Status cannot_listen(const std::string& listen) {
  return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", listen,
                                               ": the port is in use or the address is not of this machine; choose "
                                               "another --listen"));
}

}  // namespace telar::server::rpc
