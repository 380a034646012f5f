// What a coordinator answers while another one leads: to every call UNAVAILABLE (NOT_LEADER) with the leader's address,
// in words and as `leader` in the metadata of the error; NOT_SERVING as its health.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tls.h"

namespace grpc {
class Server;
}

namespace telar::server::rpc {

class Standby {
 public:
  // `leader`: its address, or empty; called on gRPC's threads. ALREADY_EXISTS names the port that cannot be had.
  // `tls` empty: in plain text. Whoever calls is told, with a token or without.
  static absl::StatusOr<std::unique_ptr<Standby>> start(const std::string& listen, const TlsFiles& tls,
                                                        std::function<std::string()> leader);
  ~Standby();  // The port is free again when it returns.

  const std::string& address() const { return address_; }  // With the port that it got.

 private:
  class Refusals;
  explicit Standby(std::function<std::string()> leader);
  absl::Status bind(const std::string& listen, const TlsFiles& tls);

  std::unique_ptr<Refusals> refusals_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace telar::server::rpc
