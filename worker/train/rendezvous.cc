#include "worker/train/rendezvous.h"

#include <algorithm>
#include <thread>

#include "common/call_deadline.h"
#include "common/errors.h"
#include "common/line.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::train {
namespace {

constexpr std::chrono::seconds kTry{20};  // Then a connection counts as dead.
constexpr std::chrono::milliseconds kPause{100};

class GrpcStore final : public backend::KeyValueStore {
 public:
  explicit GrpcStore(const v1::RankPlan& plan)
      : job_(plan.job()), epoch_(plan.epoch()), line_(plan.rendezvous_address()) {}

  absl::Status put(const std::string& key, const std::string& value) override {
    v1::PutKeyRequest request;
    request.set_job(job_);
    request.set_epoch(epoch_);
    request.set_key(key);
    request.set_value(value);
    v1::PutKeyResponse response;
    return call(std::chrono::seconds(30),
                [&](auto& stub, auto* context) { return stub.PutKey(context, request, &response); });
  }

  absl::StatusOr<std::vector<std::string>> get(std::span<const std::string> keys,
                                               std::chrono::milliseconds timeout) override {
    v1::GetKeysRequest request;
    request.set_job(job_);
    request.set_epoch(epoch_);
    for (const std::string& key : keys) request.add_keys(key);
    v1::GetKeysResponse response;
    const absl::Status status =
        call(timeout, [&](auto& stub, auto* context) { return stub.GetKeys(context, request, &response); });
    if (!status.ok()) return status;
    return std::vector<std::string>(response.values().begin(), response.values().end());
  }

 private:
  // The coordinator may restart meanwhile, or the connection be dead: it keeps the keys, so the same call is made again
  // until the deadline.
  template <typename Rpc>
  absl::Status call(std::chrono::milliseconds timeout, Rpc rpc) {
    using Steady = std::chrono::steady_clock;  // The wall's clock may be set meanwhile.
    const auto end = Steady::now() + timeout;
    for (;;) {
      const Steady::duration left = end - Steady::now();
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      const CallDeadline deadline(context, std::min<Steady::duration>(left, kTry));
      const grpc::Status answer = deadline.told(rpc(*line_.stub(), &context));
      const absl::Status status = from_grpc(answer);
      const bool late = absl::IsDeadlineExceeded(status);
      if (!late && !absl::IsUnavailable(status)) return status;
      if (late ? left <= kTry : Steady::now() >= end) return status;
      if (reason(status).empty()) line_.renew_unless_answered(answer);  // With one it is the coordinator's own word.
      std::this_thread::sleep_for(kPause);
    }
  }

  const std::string job_;
  const uint64_t epoch_;
  Line<v1::Rendezvous> line_;
};

}  // namespace

std::unique_ptr<backend::KeyValueStore> dial_rendezvous(const v1::RankPlan& plan) {
  return std::make_unique<GrpcStore>(plan);
}

}  // namespace telar::train
