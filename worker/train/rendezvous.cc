#include "worker/train/rendezvous.h"

#include <thread>

#include "common/channel.h"
#include "common/errors.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::train {
namespace {

class GrpcStore final : public backend::KeyValueStore {
 public:
  explicit GrpcStore(const v1::RankPlan& plan)
      : job_(plan.job()), epoch_(plan.epoch()), stub_(v1::Rendezvous::NewStub(dial(plan.rendezvous_address()))) {}

  absl::Status put(const std::string& key, const std::string& value) override {
    v1::PutKeyRequest request;
    request.set_job(job_);
    request.set_epoch(epoch_);
    request.set_key(key);
    request.set_value(value);
    v1::PutKeyResponse response;
    return call(std::chrono::seconds(30),
                [&](grpc::ClientContext* context) { return stub_->PutKey(context, request, &response); });
  }

  absl::StatusOr<std::vector<std::string>> get(std::span<const std::string> keys,
                                               std::chrono::milliseconds timeout) override {
    v1::GetKeysRequest request;
    request.set_job(job_);
    request.set_epoch(epoch_);
    for (const std::string& key : keys) request.add_keys(key);
    v1::GetKeysResponse response;
    const absl::Status status =
        call(timeout, [&](grpc::ClientContext* context) { return stub_->GetKeys(context, request, &response); });
    if (!status.ok()) return status;
    return std::vector<std::string>(response.values().begin(), response.values().end());
  }

 private:
  // The coordinator may restart meanwhile: it keeps the keys, so the same call is made again until the deadline.
  template <typename Rpc>
  static absl::Status call(std::chrono::milliseconds timeout, Rpc rpc) {
    using Steady = std::chrono::steady_clock;  // The wall's clock may be set meanwhile.
    const auto deadline = Steady::now() + timeout;
    for (;;) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(std::chrono::system_clock::now() + (deadline - Steady::now()));
      const absl::Status status = from_grpc(rpc(&context));
      if (!absl::IsUnavailable(status) || Steady::now() >= deadline) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  const std::string job_;
  const uint64_t epoch_;
  const std::unique_ptr<v1::Rendezvous::Stub> stub_;
};

}  // namespace

std::unique_ptr<backend::KeyValueStore> dial_rendezvous(const v1::RankPlan& plan) {
  return std::make_unique<GrpcStore>(plan);
}

}  // namespace telar::train
