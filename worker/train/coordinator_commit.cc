#include "worker/train/coordinator_commit.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "common/channel.h"
#include "common/errors.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::train {
namespace {

constexpr std::chrono::seconds kCall{10};  // One try.
constexpr std::chrono::minutes kPatienceForLast{2};

using Stub = v1::Checkpoints::Stub;

// What the coordinator's door says of this node, such as that it is revoked, is a no like any other. Without a reason
// it is the coordinator that may not write, which somebody will mend.
absl::Status told(const grpc::Status& answer) {
  absl::Status status = from_grpc(answer);
  const bool barred = absl::IsPermissionDenied(status) && !reason(status).empty();
  return barred ? absl::FailedPreconditionError(status.message()) : status;
}

}  // namespace

std::unique_ptr<checkpoint::PatientCommitter> dial_committer(const v1::RankPlan& plan) {
  const auto stub = std::shared_ptr<Stub>(v1::Checkpoints::NewStub(dial(plan.rendezvous_address())));
  checkpoint::PatientCommitter::Service service;
  service.commit = [stub, job = plan.job()](const checkpoint::Decision& wanted) {
    v1::CommitCheckpointRequest request;
    request.set_job(job);
    request.set_epoch(wanted.attempt);
    request.set_step(wanted.step);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCall);
    v1::CommitCheckpointResponse response;
    return told(stub->CommitCheckpoint(&context, request, &response));
  };
  service.last = [stub, job = plan.job(),
                  epoch = plan.epoch()]() -> absl::StatusOr<std::optional<checkpoint::Decision>> {
    v1::LastCommitRequest request;
    request.set_job(job);
    request.set_epoch(epoch);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCall);
    v1::LastCommitResponse response;
    const absl::Status status = told(stub->LastCommit(&context, request, &response));
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
