#include "worker/train/coordinator_commit.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "common/call_deadline.h"
#include "common/errors.h"
#include "common/line.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::train {
namespace {

constexpr std::chrono::seconds kCall{10};  // One try.
constexpr std::chrono::minutes kPatienceForLast{2};

using CheckpointsLine = Line<v1::Checkpoints>;

// What the coordinator's door says of this node, such as that it is revoked, is a no like any other. Without a reason
// it is the coordinator that may not write, which somebody will mend.
absl::Status told(const grpc::Status& answer) {
  absl::Status status = from_grpc(answer);
  const bool barred = absl::IsPermissionDenied(status) && !reason(status).empty();
  return barred ? absl::FailedPreconditionError(status.message()) : status;
}

// One call. `rpc` makes it.
template <typename Rpc>
absl::Status ask(CheckpointsLine& line, Rpc rpc) {
  grpc::ClientContext context;
  const CallDeadline deadline(context, kCall);
  const grpc::Status answer = deadline.told(rpc(*line.stub(), &context));
  line.renew_unless_answered(answer);
  return told(answer);
}

}  // namespace

std::unique_ptr<checkpoint::PatientCommitter> dial_committer(const v1::RankPlan& plan) {
  const auto line = std::make_shared<CheckpointsLine>(plan.rendezvous_address());  // Of both functions below.
  checkpoint::PatientCommitter::Service service;
  service.commit = [line, job = plan.job()](const checkpoint::Decision& wanted) {
    v1::CommitCheckpointRequest request;
    request.set_job(job);
    request.set_epoch(wanted.attempt);
    request.set_step(wanted.step);
    v1::CommitCheckpointResponse response;
    return ask(*line, [&](auto& stub, auto* context) { return stub.CommitCheckpoint(context, request, &response); });
  };
  service.last = [line, job = plan.job(),
                  epoch = plan.epoch()]() -> absl::StatusOr<std::optional<checkpoint::Decision>> {
    v1::LastCommitRequest request;
    request.set_job(job);
    request.set_epoch(epoch);
    v1::LastCommitResponse response;
    const absl::Status status =
        ask(*line, [&](auto& stub, auto* context) { return stub.LastCommit(context, request, &response); });
    if (!status.ok()) return status;
    if (!response.any()) return std::nullopt;
    return checkpoint::Decision{response.step(), response.epoch()};
  };
  service.on_wait = [](const absl::Status& error) {
    spdlog::warn("checkpoint: the coordinator does not answer and is asked again: {}", std::string(error.message()));
  };
  return std::make_unique<checkpoint::PatientCommitter>(std::move(service), kPatienceForLast,
                                                        checkpoint::PatientCommitter::Pauses());
}

}  // namespace telar::train
