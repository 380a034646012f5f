// The coordinator's Rendezvous and Checkpoints services by themselves, on a port of their own, for gangs of ranks that
// run in a test.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "tests/fakes/key_value_store.h"

namespace telar::fakes {

// Decides like the coordinator, or as it is told to.
class FakeCheckpoints final : public v1::Checkpoints::Service {
 public:
  std::atomic<bool> away{false};
  std::atomic<bool> stale{false};
  std::atomic<bool> revoked{false};  // The node of whoever asks is.
  std::atomic<int> asked{0};

  // The last decision about a job: epoch and step.
  std::optional<std::pair<uint64_t, uint64_t>> decided(const std::string& job) {
    const std::lock_guard lock(mutex_);
    const auto found = decided_.find(job);
    return found == decided_.end() ? std::nullopt : std::optional(found->second);
  }

  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                v1::CommitCheckpointResponse*) override {
    ++asked;
    if (away) return {grpc::StatusCode::UNAVAILABLE, "away"};
    if (revoked) return to_grpc(error(absl::StatusCode::kPermissionDenied, "REVOKED", "node a is revoked"));
    if (stale) return {grpc::StatusCode::FAILED_PRECONDITION, "the current epoch is another"};
    const std::lock_guard lock(mutex_);
    decided_[request->job()] = {request->epoch(), request->step()};
    return grpc::Status::OK;
  }
  grpc::Status LastCommit(grpc::ServerContext*, const v1::LastCommitRequest* request,
                          v1::LastCommitResponse* response) override {
    const std::lock_guard lock(mutex_);
    const auto found = decided_.find(request->job());
    response->set_any(found != decided_.end());
    if (!response->any()) return grpc::Status::OK;
    response->set_epoch(found->second.first);
    response->set_step(found->second.second);
    return grpc::Status::OK;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<uint64_t, uint64_t>> decided_;  // By job: epoch, step.
};

class FakeRendezvous final : public v1::Rendezvous::Service {
 public:
  FakeRendezvous() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    builder.RegisterService(&checkpoints);
    server_ = builder.BuildAndStart();
  }
  ~FakeRendezvous() override { server_->Shutdown(std::chrono::system_clock::now()); }
  FakeCheckpoints checkpoints;
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
  grpc::Status ReadClock(grpc::ServerContext*, const v1::ReadClockRequest*, v1::ReadClockResponse* response) override {
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    response->set_clock("the fake's");
    response->set_received_seconds(now.count());
    response->set_replied_seconds(now.count());
    return grpc::Status::OK;
  }

  InProcessStore store_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace telar::fakes
