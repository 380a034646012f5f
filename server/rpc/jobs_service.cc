#include "server/rpc/jobs_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/process.h"
#include "common/version.h"
#include "server/auth/caller.h"
#include "server/jobs/elastic.h"
#include "server/jobs/trace_file.h"
#include "server/jobs/transitions.h"
#include "server/rpc/answer.h"

namespace telar::server::rpc {
namespace {

constexpr std::chrono::milliseconds kClientLook(250);  // How long a client that went away may go unnoticed.
constexpr int kEventsAPage = 256;
constexpr size_t kTracePiece = 256 << 10;

// When a stream sends a heartbeat: at its start, and after each silence.
class Pulse {
 public:
  explicit Pulse(std::chrono::milliseconds every) : every_(every) {}
  bool due() const { return !begun_ || std::chrono::steady_clock::now() - last_ >= every_; }
  void sent() {
    begun_ = true;
    last_ = std::chrono::steady_clock::now();
  }

 private:
  const std::chrono::milliseconds every_;
  std::chrono::steady_clock::time_point last_;
  bool begun_ = false;
};

grpc::Status cancelled() { return grpc::Status(grpc::StatusCode::CANCELLED, "the caller went away"); }

grpc::Status shutting_down(const std::string& resume) {
  return to_grpc(error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN",
                       absl::StrCat("the coordinator is shutting down; resume with ", resume)));
}

// Walks over the logs of one rank, epoch after epoch.
struct LogPosition {
  uint64_t epoch = 0;
  uint64_t offset = 0;
  bool one_epoch = false;

  // Whether nothing can be added to this epoch's log any more.
  bool over(const v1::Job& job) const { return epoch < job.epoch() || !jobs::placed(job.state()); }
};

absl::Status check_log_request(const v1::ReadLogRequest& request, const v1::Job& job) {
  std::vector<Violation> found;
  const uint32_t ranks = jobs::most_ranks(job.spec());
  if (request.rank() >= ranks) {
    found.push_back({"rank", absl::StrCat(request.rank(), " is not below ", ranks, ", the number of ranks")});
  }
  if (request.epoch() > job.epoch()) {
    found.push_back({"epoch", absl::StrCat(request.epoch(), " is beyond the current one, ", job.epoch())});
  }
  return found.empty() ? absl::OkStatus() : invalid(found);
}

// Of what has few entries, in the order of their names. The token is the last name of the page before: what comes and
// goes in between disturbs nothing.
template <typename Entry, typename Request>
absl::Status page_of(std::vector<Entry> all, const Request& request, google::protobuf::RepeatedPtrField<Entry>& page,
                     std::string& next) {
  if (request.page_size() < 0) {
    return invalid(
        {{"page_size", absl::StrCat(request.page_size(), " must not be negative; 0 means all that are left")}});
  }
  for (Entry& one : all) {
    if (one.name() <= request.page_token()) continue;
    if (request.page_size() > 0 && page.size() == request.page_size()) {
      next = page.rbegin()->name();
      break;
    }
    *page.Add() = std::move(one);
  }
  return absl::OkStatus();
}

}  // namespace

grpc::Status JobsService::CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* request, v1::Job* job) {
  const CallTimer timer(metrics_, "CreateJob");
  return answer(manager_->create(*request, auth::current_caller().name), job);
}

grpc::Status JobsService::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request, v1::Job* job) {
  const CallTimer timer(metrics_, "GetJob");
  return answer(manager_->get(request->name()), job);
}

grpc::Status JobsService::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                                   v1::ListJobsResponse* response) {
  const CallTimer timer(metrics_, "ListJobs");
  return answer(manager_->list(*request), response);
}

grpc::Status JobsService::CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request, v1::Job* job) {
  const CallTimer timer(metrics_, "CancelJob");
  return answer(manager_->cancel(*request), job);
}

grpc::Status JobsService::CreateJobArray(grpc::ServerContext*, const v1::CreateJobArrayRequest* request,
                                         v1::CreateJobArrayResponse* response) {
  const CallTimer timer(metrics_, "CreateJobArray");
  return answer(manager_->create_array(*request, auth::current_caller().name), response);
}

grpc::Status JobsService::UpdateJob(grpc::ServerContext*, const v1::UpdateJobRequest* request, v1::Job* job) {
  const CallTimer timer(metrics_, "UpdateJob");
  return answer(manager_->update(*request), job);
}

grpc::Status JobsService::ListQueues(grpc::ServerContext*, const v1::ListQueuesRequest* request,
                                     v1::ListQueuesResponse* response) {
  const CallTimer timer(metrics_, "ListQueues");
  return to_grpc(
      page_of(manager_->queues(), *request, *response->mutable_queues(), *response->mutable_next_page_token()));
}

grpc::Status JobsService::WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                                   grpc::ServerWriter<v1::WatchJobResponse>* writer) {
  uint64_t after = request->after_sequence();
  Pulse pulse(heartbeat_);
  while (!context->IsCancelled()) {
    const uint64_t seen = manager_->changes().count();
    auto page = manager_->events(request->name(), after, kEventsAPage);
    if (!page.ok()) return to_grpc(page.status());
    v1::WatchJobResponse response;
    *response.mutable_job() = page->job;
    for (v1::JobEvent& event : page->events) {
      after = event.sequence();
      *response.mutable_event() = std::move(event);
      if (!writer->Write(response)) return cancelled();
      pulse.sent();
    }
    if (!page->events.empty() && !page->complete) continue;  // There may be more.
    response.clear_event();
    if ((pulse.due() || page->complete) && !writer->Write(response)) return cancelled();
    if (pulse.due()) pulse.sent();
    if (page->complete) return grpc::Status::OK;
    if (manager_->changes().over()) return shutting_down(absl::StrCat("after_sequence ", after));
    manager_->changes().wait(seen, std::min(kClientLook, heartbeat_));
  }
  return cancelled();
}

grpc::Status JobsService::ReadLog(grpc::ServerContext* context, const v1::ReadLogRequest* request,
                                  grpc::ServerWriter<v1::LogChunk>* writer) {
  auto first = manager_->get(request->name());
  if (!first.ok()) return to_grpc(first.status());
  if (absl::Status status = check_log_request(*request, *first); !status.ok()) return to_grpc(status);
  LogPosition at{request->epoch() == 0 ? 1 : request->epoch(), request->offset(), request->epoch() != 0};
  Pulse pulse(heartbeat_);
  while (!context->IsCancelled()) {
    const uint64_t seen = manager_->changes().count();
    // The job first: if its epoch is over now, what is read next is the whole rest.
    auto job = manager_->get(request->name());
    if (!job.ok()) return to_grpc(job.status());
    auto piece = manager_->read_log(request->name(), at.epoch, request->rank(), at.offset);
    if (!piece.ok()) return to_grpc(piece.status());
    v1::LogChunk chunk;
    chunk.set_rank(request->rank());
    chunk.set_epoch(at.epoch);
    chunk.set_offset(at.offset);
    if (!piece->data.empty() || piece->missing > 0) {
      at.offset += piece->data.size() + piece->missing;
      chunk.set_missing(piece->missing);
      chunk.set_data(std::move(piece->data));
      if (!writer->Write(chunk)) return cancelled();
      pulse.sent();
      continue;
    }
    if (!at.one_epoch && at.epoch < job->epoch()) {
      at = {at.epoch + 1, 0, false};
      continue;
    }
    const bool over = jobs::terminal(job->state()) || (at.one_epoch && at.over(*job));
    if (over || !request->follow()) return grpc::Status::OK;
    if (manager_->changes().over()) return shutting_down(absl::StrCat("epoch ", at.epoch, ", offset ", at.offset));
    if (pulse.due()) {
      if (!writer->Write(chunk)) return cancelled();
      pulse.sent();
    }
    manager_->changes().wait(seen, std::min(kClientLook, heartbeat_));
  }
  return cancelled();
}

grpc::Status JobsService::TraceJob(grpc::ServerContext*, const v1::TraceJobRequest* request, v1::Job* job) {
  const CallTimer timer(metrics_, "TraceJob");
  return answer(manager_->trace(*request), job);
}

// A piece at a time from the disk to the caller: however many ranks there are, one piece is in memory.
grpc::Status JobsService::ReadTrace(grpc::ServerContext* context, const v1::ReadTraceRequest* request,
                                    grpc::ServerWriter<v1::TraceChunk>* writer) {
  const auto job = manager_->get(request->name());
  if (!job.ok()) return to_grpc(job.status());
  bool any = false;
  uint64_t offset = request->offset();
  for (uint32_t rank = request->rank(); rank < jobs::most_ranks(job->spec()); ++rank, offset = 0) {
    const auto file = jobs::TraceFile::open(job->run_dir(), rank, request->step());
    if (absl::IsNotFound(file.status())) continue;  // It missed the step, or there is no such rank in this epoch.
    if (!file.ok()) return to_grpc(file.status());
    any = true;
    v1::TraceChunk chunk;
    chunk.set_rank(rank);
    while (!chunk.last()) {
      if (context->IsCancelled()) return cancelled();
      auto data = file->read(offset, kTracePiece);
      if (!data.ok()) return to_grpc(data.status());
      chunk.set_offset(offset);
      offset += data->size();
      chunk.set_last(offset >= file->size());
      chunk.set_data(*std::move(data));
      if (!writer->Write(chunk)) return cancelled();
    }
  }
  if (any || request->rank() > 0) return grpc::Status::OK;
  return to_grpc(error(absl::StatusCode::kNotFound, "TRACE_NOT_FOUND",
                       absl::StrCat("job '", job->name(), "': below ", job->run_dir(), " is no trace of step ",
                                    request->step(), "; the coordinator must see the folder that workers write to")));
}

grpc::Status JobsService::ListNodes(grpc::ServerContext*, const v1::ListNodesRequest* request,
                                    v1::ListNodesResponse* response) {
  const CallTimer timer(metrics_, "ListNodes");
  return to_grpc(
      page_of(manager_->nodes(), *request, *response->mutable_nodes(), *response->mutable_next_page_token()));
}

grpc::Status JobsService::GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*, v1::Version* response) {
  response->set_version(TELAR_VERSION);
  response->set_commit(TELAR_COMMIT);
  response->set_build_type(TELAR_BUILD_TYPE);
  return grpc::Status::OK;
}

}  // namespace telar::server::rpc
