// telar.v1.Jobs: translates between the wire and the job manager, and streams.
#pragma once

#include <chrono>

#include "server/jobs/job_manager.h"
#include "server/rpc/metrics.h"
#include "telar/v1/jobs.grpc.pb.h"

namespace telar::server::rpc {

// Streams send a heartbeat after this much silence. They end with UNAVAILABLE when the manager's signal shuts down.
class JobsService final : public v1::Jobs::Service {
 public:
  JobsService(jobs::JobManager* manager, Metrics* metrics, std::chrono::milliseconds heartbeat)
      : manager_(manager), metrics_(metrics), heartbeat_(heartbeat) {}

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
  jobs::JobManager* const manager_;
  Metrics* const metrics_;
  const std::chrono::milliseconds heartbeat_;
};

}  // namespace telar::server::rpc
