#include "server/rpc/standby.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/errors.h"
#include "server/rpc/services.h"

namespace telar::server::rpc {
namespace {

constexpr std::chrono::milliseconds kLastRefusals(200);

absl::Status not_leader(const std::string& leader) {
  if (leader.empty()) {
    return error(absl::StatusCode::kUnavailable, "NOT_LEADER",
                 "this coordinator does not lead, and none does just now");
  }
  return error(absl::StatusCode::kUnavailable, "NOT_LEADER",
               absl::StrCat("this coordinator does not lead; the leader is ", leader), {{"leader", leader}});
}

class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const absl::Status& status) { Finish(to_grpc(status)); }
  void OnDone() override { delete this; }  // gRPC's rule: nobody else knows when it is over.
};

}  // namespace

class Standby::Refusals final : public grpc::CallbackGenericService {
 public:
  explicit Refusals(std::function<std::string()> leader) : leader_(std::move(leader)) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Refusal(not_leader(leader_()));
  }

 private:
  const std::function<std::string()> leader_;
};

Standby::Standby(std::function<std::string()> leader) : refusals_(std::make_unique<Refusals>(std::move(leader))) {}

Standby::~Standby() {
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now() + kLastRefusals);
  server_->Wait();
}

absl::StatusOr<std::unique_ptr<Standby>> Standby::start(const std::string& listen, const TlsFiles& tls,
                                                        std::function<std::string()> leader) {
  std::unique_ptr<Standby> standby(new Standby(std::move(leader)));
  if (absl::Status status = standby->bind(listen, tls); !status.ok()) return status;
  return standby;
}

absl::Status Standby::bind(const std::string& listen, const TlsFiles& tls) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  set_keepalive(builder);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int port = 0;
  builder.AddListeningPort(listen, tls.any() ? server_credentials(tls) : grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(refusals_.get());
  server_ = builder.BuildAndStart();
  if (!server_ || port == 0) return cannot_listen(listen);
  address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
  set_health(*server_, false);
  return absl::OkStatus();
}

}  // namespace telar::server::rpc
