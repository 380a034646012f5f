// The guard before every method of every service: what is registered with gRPC are these. A method that has no override
// here answers UNIMPLEMENTED, so a new one cannot be reached unguarded.
#pragma once

#include "server/auth/guard.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "telar/v1/jobs.grpc.pb.h"

namespace telar::server::rpc {

// Guard and services must outlive these.
class GuardedJobs final : public v1::Jobs::Service {
 public:
  GuardedJobs(auth::Guard* guard, v1::Jobs::Service* inner) : guard_(guard), inner_(inner) {}

  grpc::Status CreateJob(grpc::ServerContext* context, const v1::CreateJobRequest* request, v1::Job* job) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request, v1::Job* job) override;
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request, v1::Job* job) override;
  grpc::Status CreateJobArray(grpc::ServerContext* context, const v1::CreateJobArrayRequest* request,
                              v1::CreateJobArrayResponse* response) override;
  grpc::Status UpdateJob(grpc::ServerContext* context, const v1::UpdateJobRequest* request, v1::Job* job) override;
  grpc::Status ListQueues(grpc::ServerContext* context, const v1::ListQueuesRequest* request,
                          v1::ListQueuesResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override;
  grpc::Status ReadLog(grpc::ServerContext* context, const v1::ReadLogRequest* request,
                       grpc::ServerWriter<v1::LogChunk>* writer) override;
  grpc::Status TraceJob(grpc::ServerContext* context, const v1::TraceJobRequest* request, v1::Job* job) override;
  grpc::Status ReadTrace(grpc::ServerContext* context, const v1::ReadTraceRequest* request,
                         grpc::ServerWriter<v1::TraceChunk>* writer) override;
  grpc::Status ListNodes(grpc::ServerContext* context, const v1::ListNodesRequest* request,
                         v1::ListNodesResponse* response) override;
  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest* request,
                          v1::Version* response) override;

 private:
  auth::Guard* const guard_;
  v1::Jobs::Service* const inner_;
};

class GuardedNodes final : public v1::Nodes::Service {
 public:
  GuardedNodes(auth::Guard* guard, v1::Nodes::Service* inner) : guard_(guard), inner_(inner) {}

  grpc::Status CordonNode(grpc::ServerContext* context, const v1::CordonNodeRequest* request, v1::Node* node) override;
  grpc::Status UncordonNode(grpc::ServerContext* context, const v1::UncordonNodeRequest* request,
                            v1::Node* node) override;
  grpc::Status DrainNode(grpc::ServerContext* context, const v1::DrainNodeRequest* request, v1::Node* node) override;
  grpc::Status ReleaseDevice(grpc::ServerContext* context, const v1::ReleaseDeviceRequest* request,
                             v1::Node* node) override;

 private:
  auth::Guard* const guard_;
  v1::Nodes::Service* const inner_;
};

class GuardedCluster final : public v1::Cluster::Service {
 public:
  GuardedCluster(auth::Guard* guard, v1::Cluster::Service* inner) : guard_(guard), inner_(inner) {}

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
  auth::Guard* const guard_;
  v1::Cluster::Service* const inner_;
};

class GuardedRendezvous final : public v1::Rendezvous::Service {
 public:
  GuardedRendezvous(auth::Guard* guard, v1::Rendezvous::Service* inner) : guard_(guard), inner_(inner) {}

  grpc::Status PutKey(grpc::ServerContext* context, const v1::PutKeyRequest* request,
                      v1::PutKeyResponse* response) override;
  grpc::Status GetKeys(grpc::ServerContext* context, const v1::GetKeysRequest* request,
                       v1::GetKeysResponse* response) override;
  grpc::Status ReadClock(grpc::ServerContext* context, const v1::ReadClockRequest* request,
                         v1::ReadClockResponse* response) override;

 private:
  auth::Guard* const guard_;
  v1::Rendezvous::Service* const inner_;
};

class GuardedCheckpoints final : public v1::Checkpoints::Service {
 public:
  GuardedCheckpoints(auth::Guard* guard, v1::Checkpoints::Service* inner) : guard_(guard), inner_(inner) {}

  grpc::Status CommitCheckpoint(grpc::ServerContext* context, const v1::CommitCheckpointRequest* request,
                                v1::CommitCheckpointResponse* response) override;
  grpc::Status LastCommit(grpc::ServerContext* context, const v1::LastCommitRequest* request,
                          v1::LastCommitResponse* response) override;

 private:
  auth::Guard* const guard_;
  v1::Checkpoints::Service* const inner_;
};

}  // namespace telar::server::rpc
