// A coordinator in the test's own process, over real gRPC: a store of jobs and streams that break on command.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "common/errors.h"
#include "telar/v1/jobs.grpc.pb.h"
#include "tests/client/fake_traces.h"

namespace telar::client {

class FakeJobsService final : public v1::Jobs::Service {
 public:
  // What the test sets before it calls, and reads after; guarded by `mutex` while calls run.
  std::mutex mutex;
  std::map<std::string, v1::Job> jobs;       // By full name.
  std::vector<v1::WatchJobResponse> events;  // Of the one job that is watched, sequence 1, 2, ...
  std::map<uint64_t, std::string> logs;      // By epoch, of every rank.
  std::pair<uint64_t, uint64_t> lost{0, 0};  // From and to: bytes of each log that are gone.
  std::deque<grpc::Status> create_answers;   // Given before the store is asked, then dropped.
  std::deque<grpc::Status> cancel_answers;
  std::deque<grpc::Status> read_answers;       // Of GetJob and ListJobs.
  std::deque<size_t> break_streams_after;      // Messages that the next streams send before they break.
  bool hold_streams = false;                   // Streams stay open with heartbeats until the client leaves.
  std::function<void(v1::Job&)> on_watch_end;  // Changes the job when a watch has sent everything.
  std::vector<v1::CreateJobRequest> creates;
  std::vector<v1::CancelJobRequest> cancels;
  std::vector<v1::CreateJobArrayRequest> arrays;
  std::vector<v1::UpdateJobRequest> updates;
  std::function<void(v1::Job&)> on_dry_run;  // Says where the job would run, or why not.
  std::vector<v1::WatchJobRequest> watches;
  std::vector<v1::ReadLogRequest> reads;
  std::vector<v1::ListJobsRequest> lists;
  FakeTraces traces;
  std::function<void(v1::Job&)> on_get;  // Changes the job before it is given.
  size_t page_size = 2;

  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* request, v1::Job* job) override {
    const std::lock_guard lock(mutex);
    creates.push_back(*request);
    if (const grpc::Status status = pop(create_answers); !status.ok()) return status;
    *job->mutable_spec() = request->spec();
    if (request->validate_only()) {
      job->mutable_spec()->mutable_checkpoint()->set_keep(2);  // A default, filled in.
      if (on_dry_run) on_dry_run(*job);
      return grpc::Status::OK;
    }
    job->set_name("projects/default/jobs/" + request->spec().name() + "-x1");
    job->set_state(v1::Job::QUEUED);
    return store(*job);
  }

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request, v1::Job* job) override {
    const std::lock_guard lock(mutex);
    if (const grpc::Status status = pop(read_answers); !status.ok()) return status;
    const auto found = jobs.find(request->name());
    if (found == jobs.end()) return {grpc::StatusCode::NOT_FOUND, "no job " + request->name()};
    if (on_get) on_get(found->second);
    *job = found->second;
    return grpc::Status::OK;
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    const std::lock_guard lock(mutex);
    lists.push_back(*request);
    if (const grpc::Status status = pop(read_answers); !status.ok()) return status;
    size_t at = 0;
    const size_t first = request->page_token().empty() ? 0 : std::stoul(request->page_token());
    for (const auto& [name, job] : jobs) {
      bool wanted = request->states().empty();
      for (const int state : request->states()) wanted = wanted || state == job.state();
      if (!wanted) continue;
      if (at >= first && at < first + page_size) *response->add_jobs() = job;
      ++at;
    }
    if (at > first + page_size) response->set_next_page_token(std::to_string(first + page_size));
    return grpc::Status::OK;
  }

  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request, v1::Job* job) override {
    const std::lock_guard lock(mutex);
    cancels.push_back(*request);
    if (const grpc::Status status = pop(cancel_answers); !status.ok()) return status;
    *job = jobs.at(request->name());
    job->set_state(v1::Job::CANCELLING);
    return store(*job);
  }

  grpc::Status CreateJobArray(grpc::ServerContext*, const v1::CreateJobArrayRequest* request,
                              v1::CreateJobArrayResponse* response) override {
    const std::lock_guard lock(mutex);
    arrays.push_back(*request);
    for (uint32_t i = 0; i < request->spec().array().size(); ++i) {
      v1::Job& job = *response->add_jobs();
      if (request->validate_only()) {
        *job.mutable_spec() = request->spec();
        continue;
      }
      job.set_name("projects/default/jobs/x1-" + std::to_string(i));
      store(job);
    }
    return grpc::Status::OK;
  }

  grpc::Status UpdateJob(grpc::ServerContext*, const v1::UpdateJobRequest* request, v1::Job* job) override {
    const std::lock_guard lock(mutex);
    updates.push_back(*request);
    *job = jobs.at(request->job().name());
    job->mutable_spec()->mutable_scheduling()->MergeFrom(request->job().spec().scheduling());
    return store(*job);
  }

  grpc::Status ListQueues(grpc::ServerContext*, const v1::ListQueuesRequest*,
                          v1::ListQueuesResponse* response) override {
    v1::Queue& queue = *response->add_queues();
    queue.set_name("urgent");
    queue.set_priority(10);
    queue.set_weight(2.5);
    queue.set_held_devices(3);
    return grpc::Status::OK;
  }

  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    std::unique_lock lock(mutex);
    watches.push_back(*request);
    size_t left = next_break();
    for (const v1::WatchJobResponse& one : events) {
      if (one.event().sequence() <= request->after_sequence()) continue;
      if (left-- == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
      writer->Write(one);
    }
    if (left == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
    v1::Job& job = jobs.at(request->name());
    v1::WatchJobResponse heartbeat;
    *heartbeat.mutable_job() = job;
    hold(context, lock, [&] { writer->Write(heartbeat); });
    if (on_watch_end) on_watch_end(job);
    return grpc::Status::OK;
  }

  // As the contract says: an explicit epoch is that one alone, 0 is all of them from the first.
  grpc::Status ReadLog(grpc::ServerContext* context, const v1::ReadLogRequest* request,
                       grpc::ServerWriter<v1::LogChunk>* writer) override {
    constexpr size_t kChunk = 7;
    std::unique_lock lock(mutex);
    reads.push_back(*request);
    size_t left = next_break();
    uint64_t offset = request->offset();
    for (const auto& [epoch, text] : logs) {
      if (request->epoch() != 0 && request->epoch() != epoch) continue;
      for (; offset < text.size(); offset += kChunk) {
        if (left-- == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
        v1::LogChunk chunk;
        chunk.set_rank(request->rank());
        chunk.set_epoch(epoch);
        chunk.set_offset(offset);
        if (offset >= lost.first && offset < lost.second) {
          chunk.set_missing(lost.second - offset);
          writer->Write(chunk);
          offset = lost.second - kChunk;
          continue;
        }
        const size_t end = offset < lost.first ? std::min(offset + kChunk, lost.first) : offset + kChunk;
        chunk.set_data(text.substr(offset, end - offset));
        writer->Write(chunk);
        offset = end - kChunk;
      }
      offset = 0;
    }
    if (request->follow()) hold(context, lock, [&] { writer->Write(v1::LogChunk()); });
    return grpc::Status::OK;
  }

  grpc::Status TraceJob(grpc::ServerContext*, const v1::TraceJobRequest* request, v1::Job* job) override {
    const std::lock_guard lock(mutex);
    *job = jobs.at(request->name());
    const grpc::Status status = traces.want(*request, *job);
    return status.ok() ? store(*job) : status;
  }
  grpc::Status ReadTrace(grpc::ServerContext*, const v1::ReadTraceRequest* request,
                         grpc::ServerWriter<v1::TraceChunk>* writer) override {
    const std::lock_guard lock(mutex);
    return traces.send(*request, *writer, next_break());
  }

  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*, v1::ListNodesResponse* response) override {
    const std::lock_guard lock(mutex);
    response->add_nodes()->set_name("node-a");
    response->mutable_nodes(0)->set_state(v1::Node::READY);
    return grpc::Status::OK;
  }

  grpc::Status GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*, v1::Version* version) override {
    version->set_version("9.8.7");
    version->set_commit("abc");
    return grpc::Status::OK;
  }

  // Waits until a watch or log stream was opened `count` times.
  void wait_for_streams(size_t count) {
    std::unique_lock lock(mutex);
    changed_.wait(lock, [&] { return watches.size() + reads.size() >= count; });
  }

 private:
  grpc::Status store(const v1::Job& job) {
    jobs[job.name()] = job;
    return grpc::Status::OK;
  }
  static grpc::Status pop(std::deque<grpc::Status>& answers) {
    if (answers.empty()) return grpc::Status::OK;
    const grpc::Status status = answers.front();
    answers.pop_front();
    return status;
  }
  size_t next_break() {
    changed_.notify_all();
    if (break_streams_after.empty()) return static_cast<size_t>(-1);
    const size_t after = break_streams_after.front();
    break_streams_after.pop_front();
    return after;
  }
  void hold(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock, const std::function<void()>& heartbeat) {
    while (hold_streams && !context->IsCancelled()) {
      heartbeat();
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
  }

  std::condition_variable changed_;
};

}  // namespace telar::client
