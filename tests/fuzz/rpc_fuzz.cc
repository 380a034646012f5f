// Whatever messages arrive, in whatever order: the job manager answers, and what it holds is what it stored.
//
// An input is a row of calls: a byte for the method and how much of the message is put right, two for its length, then
// the message.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <spdlog/spdlog.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "server/auth/limits.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/trace_file.h"
#include "server/rpc/http_pages.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fuzz/input.h"
#include "tests/server/jobs/fake_worker.h"

namespace {

using namespace telar;  // NOLINT: what is fuzzed.
using fuzz::require;

constexpr int kMostCalls = 64;
constexpr uint32_t kMostTasks = 20;
constexpr int kMostEvents = 16;
constexpr size_t kMostTrace = 4096;  // Bytes.

template <typename Message>
Message parse(std::string_view bytes) {
  Message message;
  message.ParsePartialFromString(std::string(bytes));  // A broken tail leaves what came before it.
  // gRPC lets no text through that is not UTF-8; a message that was left half read may have some.
  Message received;
  return received.ParseFromString(message.SerializeAsString()) ? received : Message();
}

// The same bytes for equal messages, maps and all.
std::string bytes_of(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

class Session {
 public:
  explicit Session(const std::string& folder) : folder_(folder), logs_(folder + "/logs") {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    open();
  }

  void call(uint8_t byte, std::string_view bytes) {
    right_ = (byte & 0x80) != 0;
    const int method = byte & 0x0f;
    if ((byte & 0x70) == 0x70) return look(method, bytes);
    switch (method) {
      case 3:
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        return call_of_worker(method, bytes);
      case 9:
        clock_.advance(std::chrono::milliseconds(bytes.size() * 500));
        return manager_->tick();
      case 10: {
        // The well-behaved worker, so that jobs get further than to the queue.
        (void)worker_.register_at(*manager_);
        (void)worker_.beat(*manager_);
        manager_->tick();
        (void)worker_.beat(*manager_);
        return;
      }
      case 11:
        return reopen();
      default:
        return call_of_person(method, bytes);
    }
  }

  // What changes nothing, but for TraceJob; and what is read of files.
  void look(int method, std::string_view bytes) {
    switch (method % 8) {
      case 0: {
        auto request = parse<v1::TraceJobRequest>(bytes);
        if (right_) request.set_name(name_);
        (void)manager_->trace(request);
        return;
      }
      case 1:
        return (void)manager_->get(parse<v1::GetJobRequest>(bytes).name());
      case 2: {
        auto request = parse<v1::WatchJobRequest>(bytes);
        (void)manager_->events(right_ ? name_ : request.name(), request.after_sequence(), kMostEvents);
        return;
      }
      case 3: {
        auto request = parse<v1::ReadLogRequest>(bytes);
        (void)manager_->read_log(right_ ? name_ : request.name(), request.epoch(), request.rank(), request.offset());
        return;
      }
      case 4: {
        auto request = parse<v1::ReadTraceRequest>(bytes);
        const auto file = server::jobs::TraceFile::open(folder_, request.rank(), request.step());
        if (file.ok()) (void)file->read(request.offset(), kMostTrace);
        return;
      }
      case 5: {
        auto request = parse<v1::LastCommitRequest>(bytes);
        (void)manager_->last_commit(right_ ? name_ : request.job(), right_ ? epoch() : request.epoch());
        return;
      }
      case 6:  // Whatever workers call themselves, and the queues.
        require(nlohmann::json::accept(server::rpc::worker_targets(manager_->metrics_addresses())),
                "what Prometheus finds workers by is JSON");
        (void)manager_->queues();
        (void)manager_->census();
        return;
      default:
        return read_other(bytes);
    }
  }

  // Requests that are checked before the manager has them.
  static void read_other(std::string_view bytes) {
    (void)server::auth::find_oversize(parse<v1::ListNodesRequest>(bytes));
    (void)server::auth::find_oversize(parse<v1::ListQueuesRequest>(bytes));
    (void)server::auth::find_oversize(parse<v1::GetKeysRequest>(bytes));
    (void)server::auth::find_oversize(parse<v1::ReadClockRequest>(bytes));
    (void)server::auth::find_oversize(parse<v1::CordonNodeRequest>(bytes));
    (void)server::auth::find_oversize(parse<v1::UncordonNodeRequest>(bytes));
    (void)server::auth::find_oversize(parse<v1::HeartbeatRequest>(bytes));
    (void)server::auth::find_oversize(parse<v1::AppendLogRequest>(bytes));
  }

  // A restart finds every job as it was told to be.
  void reopen() {
    const auto before = stored_jobs();
    manager_.reset();
    store_.reset();
    open();
    const auto after = stored_jobs();
    if (bytes_of(after) != bytes_of(before)) {
      std::cerr << "before:\n" << before.DebugString() << "after:\n" << after.DebugString();
      require(false, "a restart changes no job");
    }
    for (const v1::Job& job : after.jobs()) require(manager_->events(job.name(), 0, 10'000).ok(), "events can be read");
  }

 private:
  void call_of_person(int method, std::string_view bytes) {
    switch (method) {
      case 0:
        return create(parse<v1::CreateJobRequest>(bytes));
      case 1: {
        auto request = parse<v1::CancelJobRequest>(bytes);
        if (right_) request.set_name(name_);
        (void)manager_->cancel(request);
        return;
      }
      case 2: {
        auto request = parse<v1::ListJobsRequest>(bytes);
        (void)manager_->list(request);
        return;
      }
      case 12:
        return create_array(parse<v1::CreateJobArrayRequest>(bytes));
      case 13: {
        auto request = parse<v1::UpdateJobRequest>(bytes);
        if (right_) request.mutable_job()->set_name(name_);
        (void)manager_->update(request);
        return;
      }
      case 14: {
        auto request = parse<v1::DrainNodeRequest>(bytes);
        (void)manager_->set_scheduling(right_ ? "a" : request.name(),
                                       static_cast<v1::Node::Scheduling>(bytes.size() % 4), request.reason(),
                                       request.request_id());
        return;
      }
      default: {
        auto request = parse<v1::ReleaseDeviceRequest>(bytes);
        if (right_) request.set_name("a");
        (void)manager_->release_device(request);
        return;
      }
    }
  }
  void call_of_worker(int method, std::string_view bytes) {
    switch (method) {
      case 3: {
        auto request = parse<v1::RegisterNodeRequest>(bytes);
        if (right_) request.set_node("a");
        (void)manager_->register_node(request);
        return;
      }
      case 4:
        return heartbeat(parse<v1::HeartbeatRequest>(bytes));
      case 5: {
        auto request = parse<v1::ReportEventsRequest>(bytes);
        put_right(request);
        (void)manager_->report_events(request);
        return;
      }
      case 6: {
        auto request = parse<v1::AppendLogRequest>(bytes);
        put_right(request);
        (void)manager_->append_log(request);
        auto flight = parse<v1::ReportFlightRequest>(bytes);
        put_right(flight);
        (void)manager_->report_flight(flight);
        return;
      }
      case 7: {
        auto request = parse<v1::PutKeyRequest>(bytes);
        (void)manager_->put_key(right_ ? name_ : request.job(), right_ ? epoch() : request.epoch(), request.key(),
                                request.value());
        (void)manager_->keys(request.job(), request.epoch());
        return;
      }
      default: {
        auto request = parse<v1::CommitCheckpointRequest>(bytes);
        (void)manager_->commit_checkpoint(right_ ? name_ : request.job(), right_ ? epoch() : request.epoch(),
                                          request.step());
        (void)manager_->last_commit(name_, epoch());
        return;
      }
    }
  }
  // All jobs, without what is found out anew: why one waits, by a round of the scheduler, and how far ranks are, by
  // heartbeats.
  v1::ListJobsResponse stored_jobs() const {
    auto jobs = manager_->list({});
    require(jobs.ok(), "jobs can be listed");
    for (v1::Job& job : *jobs->mutable_jobs()) {
      job.clear_waiting();
      for (v1::RankPlacement& place : *job.mutable_placement()) place.clear_progress();
      if (job.state() == v1::Job::QUEUED) job.clear_message();
    }
    return *std::move(jobs);
  }
  void open() {
    auto store = server::store::open_sqlite({.path = folder_ + "/db"});
    require(store.ok(), "the store opens");
    store_ = *std::move(store);
    auto manager = server::jobs::JobManager::open({.run_root = "/runs", .rendezvous_address = "127.0.0.1:7070"},
                                                  &clock_, store_.get(), &logs_, nullptr);
    require(manager.ok(), "the manager opens");
    manager_ = *std::move(manager);
  }
  void create(v1::CreateJobRequest request) {
    (void)server::auth::find_oversize(request);
    if (right_) put_right_spec(request);
    const auto job = manager_->create(request);
    if (job.ok() && !job->name().empty()) name_ = job->name();
  }
  void create_array(v1::CreateJobArrayRequest request) {
    (void)server::auth::find_oversize(request);
    if (right_) put_right_spec(request);
    // Ten thousand tasks take their time and show nothing that a few do not.
    if (request.spec().array().size() > kMostTasks) request.mutable_spec()->mutable_array()->set_size(kMostTasks);
    (void)manager_->create_array(request);
  }
  template <typename Request>
  static void put_right_spec(Request& request) {
    request.clear_parent();
    v1::JobSpec spec = tests::small_spec(1);
    spec.MergeFrom(request.spec());
    *request.mutable_spec() = spec;
    request.mutable_spec()->mutable_resources()->set_wait_for_capacity(true);
  }
  void heartbeat(v1::HeartbeatRequest request) {
    if (right_) {
      const v1::HeartbeatRequest real = worker_.next_heartbeat();
      request.set_node(real.node());
      request.set_incarnation(real.incarnation());
      request.set_sequence(real.sequence());
      for (v1::RankStatus& rank : *request.mutable_ranks()) {
        rank.set_job(name_);
        rank.set_epoch(epoch());
      }
    }
    (void)manager_->heartbeat(request);
    (void)manager_->assignments(request.node());
  }
  template <typename Request>
  void put_right(Request& request) {
    if (!right_) return;
    request.set_node("a");
    request.set_job(name_);
    request.set_epoch(epoch());
  }
  uint64_t epoch() const {
    const auto job = manager_->get(name_);
    return job.ok() ? job->epoch() : 0;
  }

  const std::string folder_;
  fakes::FakeClock clock_;
  server::store::LogStore logs_;
  std::unique_ptr<server::store::Store> store_;
  std::unique_ptr<server::jobs::JobManager> manager_;
  tests::FakeWorker worker_{"a", 2};
  std::string name_ = "projects/default/jobs/none";  // Of the last job made.
  bool right_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  spdlog::set_level(spdlog::level::off);
  fuzz::Input input(data, size);
  Session session(folder.path("session"));
  for (int i = 0; i < kMostCalls && !input.empty(); ++i) {
    const uint8_t method = input.byte();
    session.call(method, input.take(input.half()));
  }
  session.reopen();
  return 0;
}
