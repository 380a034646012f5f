// telar.v1.Cluster, telar.v1.Rendezvous and telar.v1.Checkpoints: what workers and ranks call.
#pragma once

#include <string>

#include "common/clock.h"
#include "common/process.h"
#include "server/auth/guard.h"
#include "server/jobs/job_manager.h"
#include "server/rpc/metrics.h"
#include "server/rpc/rendezvous.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::server::rpc {

class ClusterService final : public v1::Cluster::Service {
 public:
  // `term`: see common/channel.h; 0: none.
  ClusterService(jobs::JobManager* manager, Metrics* metrics, const auth::Guard* guard, uint64_t term = 0)
      : manager_(manager), metrics_(metrics), guard_(guard), term_(term) {}

  grpc::Status RegisterNode(grpc::ServerContext* context, const v1::RegisterNodeRequest* request,
                            v1::RegisterNodeResponse* response) override;
  grpc::Status Heartbeat(grpc::ServerContext* context,
                         grpc::ServerReaderWriter<v1::HeartbeatResponse, v1::HeartbeatRequest>* stream) override;
  grpc::Status AppendLog(grpc::ServerContext* context, const v1::AppendLogRequest* request,
                         v1::AppendLogResponse* response) override;
  grpc::Status ReportEvents(grpc::ServerContext* context, const v1::ReportEventsRequest* request,
                            v1::ReportEventsResponse* response) override;
  grpc::Status ReportFlight(grpc::ServerContext* context, const v1::ReportFlightRequest* request,
                            v1::ReportFlightResponse* response) override;

 private:
  jobs::JobManager* const manager_;
  Metrics* const metrics_;
  const auth::Guard* const guard_;
  const uint64_t term_;
};

class RendezvousService final : public v1::Rendezvous::Service {
 public:
  RendezvousService(Rendezvous* rendezvous, Metrics* metrics) : rendezvous_(rendezvous), metrics_(metrics) {}

  grpc::Status PutKey(grpc::ServerContext* context, const v1::PutKeyRequest* request,
                      v1::PutKeyResponse* response) override;
  grpc::Status GetKeys(grpc::ServerContext* context, const v1::GetKeysRequest* request,
                       v1::GetKeysResponse* response) override;
  grpc::Status ReadClock(grpc::ServerContext* context, const v1::ReadClockRequest* request,
                         v1::ReadClockResponse* response) override;

 private:
  Rendezvous* const rendezvous_;
  Metrics* const metrics_;
  const RealClock clock_;
  const std::string clock_name_ = uuid4();  // Of this process's clock.
};

class CheckpointsService final : public v1::Checkpoints::Service {
 public:
  CheckpointsService(jobs::JobManager* manager, Metrics* metrics) : manager_(manager), metrics_(metrics) {}

  grpc::Status CommitCheckpoint(grpc::ServerContext* context, const v1::CommitCheckpointRequest* request,
                                v1::CommitCheckpointResponse* response) override;
  grpc::Status LastCommit(grpc::ServerContext* context, const v1::LastCommitRequest* request,
                          v1::LastCommitResponse* response) override;

 private:
  jobs::JobManager* const manager_;
  Metrics* const metrics_;
};

}  // namespace telar::server::rpc
