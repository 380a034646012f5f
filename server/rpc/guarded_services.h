// The guard before every method of every service: what is registered with gRPC are these. A method that is not in the
// lists of guarded_services.cc answers UNIMPLEMENTED, so a new one cannot be reached unguarded.
#pragma once

#include <list>
#include <string>

#include "server/auth/guard.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "telar/v1/jobs.grpc.pb.h"

namespace telar::server::rpc {

// Of v1::Jobs and so on. A service registers its methods with gRPC in its constructor, as generated ones do; here each
// goes to `inner` by way of the guard.
template <typename Contract>
class Guarded final : public grpc::Service {
 public:
  using Inner = typename Contract::Service;
  // Guard and service must outlive this.
  Guarded(auth::Guard* guard, Inner* inner);

 private:
  template <typename Request, typename Response>
  void unary(const char* name, grpc::Status (Inner::*method)(grpc::ServerContext*, const Request*, Response*));
  template <typename Request, typename Response>
  void server_stream(const char* name, grpc::Status (Inner::*method)(grpc::ServerContext*, const Request*,
                                                                     grpc::ServerWriter<Response>*));
  template <typename Request, typename Response>
  void both_stream(const char* name,
                   grpc::Status (Inner::*method)(grpc::ServerContext*, grpc::ServerReaderWriter<Response, Request>*));
  // "/telar.v1.Jobs/CreateJob"; without the slash the guard's name of it. Lives as long as this.
  const char* path_of(const char* name);

  auth::Guard* const guard_;
  Inner* const inner_;
  std::list<std::string> paths_;
};

template <>
Guarded<v1::Jobs>::Guarded(auth::Guard* guard, v1::Jobs::Service* inner);
template <>
Guarded<v1::Nodes>::Guarded(auth::Guard* guard, v1::Nodes::Service* inner);
template <>
Guarded<v1::Cluster>::Guarded(auth::Guard* guard, v1::Cluster::Service* inner);
template <>
Guarded<v1::Rendezvous>::Guarded(auth::Guard* guard, v1::Rendezvous::Service* inner);
template <>
Guarded<v1::Checkpoints>::Guarded(auth::Guard* guard, v1::Checkpoints::Service* inner);

}  // namespace telar::server::rpc
