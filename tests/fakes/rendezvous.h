// The coordinator's Rendezvous service by itself, on a port of its own, for gangs of ranks that run in a test.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "tests/fakes/key_value_store.h"

namespace telar::fakes {

class FakeRendezvous final : public v1::Rendezvous::Service {
 public:
  FakeRendezvous() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeRendezvous() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  template <typename Request>
  static std::string full_key(const Request& request, const std::string& key) {
    return absl::StrCat(request.job(), "@", request.epoch(), "/", key);
  }
  grpc::Status PutKey(grpc::ServerContext*, const v1::PutKeyRequest* request, v1::PutKeyResponse*) override {
    (void)store_.put(full_key(*request, request->key()), request->value());
    return grpc::Status::OK;
  }
  grpc::Status GetKeys(grpc::ServerContext* context, const v1::GetKeysRequest* request,
                       v1::GetKeysResponse* response) override {
    std::vector<std::string> keys;
    for (const std::string& key : request->keys()) keys.push_back(full_key(*request, key));
    // In short pieces, so that a caller that has died does not keep the server from its end.
    absl::StatusOr<std::vector<std::string>> values = absl::DeadlineExceededError("no time");
    while (!values.ok() && !context->IsCancelled() && context->deadline() > std::chrono::system_clock::now()) {
      values = store_.get(keys, std::chrono::milliseconds(50));
    }
    if (!values.ok()) return {grpc::StatusCode::DEADLINE_EXCEEDED, std::string(values.status().message())};
    for (const std::string& value : *values) response->add_values(value);
    return grpc::Status::OK;
  }

  InProcessStore store_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace telar::fakes
