// The real services on a port of their own, as clients and workers see them.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "common/channel.h"
#include "common/version.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/http_pages.h"
#include "server/rpc/server.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::rpc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;
using tests::FakeWorker;
using tests::small_spec;

class Service : public tests::ManagerTest {
 protected:
  void SetUp() override {
    ManagerTest::SetUp();
    auto server =
        Server::start({.listen = "127.0.0.1:0", .stream_heartbeat = milliseconds(100)}, manager_.get(), &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    channel_ = dial(server_->address());
    jobs_ = v1::Jobs::NewStub(channel_);
    cluster_ = v1::Cluster::NewStub(channel_);
    rendezvous_ = v1::Rendezvous::NewStub(channel_);
  }
  void TearDown() override { server_.reset(); }

  static std::unique_ptr<grpc::ClientContext> context(milliseconds deadline = seconds(20)) {
    auto one = std::make_unique<grpc::ClientContext>();
    one->set_deadline(system_clock::now() + deadline);
    return one;
  }
  void append(const std::string& job, uint64_t epoch, uint64_t offset, const std::string& data) {
    v1::AppendLogRequest request;
    request.set_node(get(job).placement(0).node());
    request.set_job(job);
    request.set_epoch(epoch);
    request.set_offset(offset);
    request.set_data(data);
    v1::AppendLogResponse response;
    const grpc::Status status = cluster_->AppendLog(context().get(), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.next_offset(), offset + data.size());
  }

  Metrics metrics_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Jobs::Stub> jobs_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
  std::unique_ptr<v1::Rendezvous::Stub> rendezvous_;
};

TEST_F(Service, ErrorsCarryEveryViolation) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = small_spec(4);
  request.mutable_spec()->set_name("No Label");
  request.mutable_spec()->mutable_model()->set_heads(5);
  v1::Job job;
  const absl::Status status = from_grpc(jobs_->CreateJob(context().get(), request, &job));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_GE(violations(status).size(), 2u) << status;

  v1::GetJobRequest nobody;
  nobody.set_name("projects/default/jobs/nobody");
  const absl::Status missing = from_grpc(jobs_->GetJob(context().get(), nobody, &job));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reason(missing), "JOB_NOT_FOUND");
}

TEST_F(Service, WatchSendsHistoryThenNewsThenEnds) {
  const std::string name = running();
  v1::WatchJobRequest request;
  request.set_name(name);
  auto watching = context();
  auto reader = jobs_->WatchJob(watching.get(), request);
  v1::WatchJobResponse response;
  std::string states;
  uint64_t last = 0;
  while (states != "QUEUED STARTING RUNNING " && reader->Read(&response)) {
    if (!response.has_event()) continue;
    EXPECT_EQ(response.event().sequence(), last + 1);
    last = response.event().sequence();
    states += v1::Job::State_Name(response.event().state_change().to()) + " ";
  }
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_FALSE(response.has_event());  // A heartbeat.
  EXPECT_EQ(response.job().state(), v1::Job::RUNNING);

  ASSERT_TRUE(report(name, 1, 0, {step_event(1, 5)}).ok());
  a_.finish_all();
  b_.finish_all();
  beat();
  std::vector<v1::JobEvent> news;
  while (reader->Read(&response)) {
    if (response.has_event()) news.push_back(response.event());
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0].rank_report().event().step().loss(), 5);
  EXPECT_EQ(news[1].state_change().to(), v1::Job::SUCCEEDED);
  EXPECT_EQ(response.job().state(), v1::Job::SUCCEEDED);

  // Resumed after the last but one.
  request.set_after_sequence(last + 1);
  auto again_context = context();
  auto again = jobs_->WatchJob(again_context.get(), request);
  ASSERT_TRUE(again->Read(&response));
  EXPECT_EQ(response.event().state_change().to(), v1::Job::SUCCEEDED);
}

TEST_F(Service, ALogSaysWhatIsMissing) {
  const std::string name = running(small_spec(1));
  append(name, 1, 0, "one ");
  v1::AppendLogRequest lost;
  lost.set_node(get(name).placement(0).node());
  lost.set_job(name);
  lost.set_epoch(1);
  lost.set_offset(4);
  lost.set_missing(1000);
  v1::AppendLogResponse response;
  ASSERT_TRUE(cluster_->AppendLog(context().get(), lost, &response).ok());
  EXPECT_EQ(response.next_offset(), 1004u);
  // Whatever a log's text says of itself is text.
  append(name, 1, 1004, "two\n[telar: 77 bytes of this log are missing here: the disk was full]\n");
  v1::RankEvent gap;
  gap.mutable_log_lost()->set_bytes(30);
  ASSERT_TRUE(report(name, 1, 0, {gap, gap}).ok());
  ASSERT_TRUE(report(name, 1, 0, {gap, gap}).ok());  // The same two lines.
  std::string noted;
  const v1::Job job = get(name);
  for (const v1::Condition& one : job.conditions()) noted += one.type() + " " + one.message() + "\n";
  EXPECT_EQ(noted,
            "LOG_GAP rank 0 epoch 1: missing from its log: 1000 bytes\n"
            "LOG_GAP rank 0 epoch 1: no room on its node's disk: 60 bytes\n");
  v1::ReadLogRequest request;
  request.set_name(name);
  auto reading = context();
  auto reader = jobs_->ReadLog(reading.get(), request);
  v1::LogChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.data(), "one ");
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.offset(), 4u);
  EXPECT_EQ(chunk.missing(), 1000u);
  EXPECT_EQ(chunk.data(), "");
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_EQ(chunk.offset(), 1004u);
  EXPECT_EQ(chunk.data().substr(0, 4), "two\n");
  reading->TryCancel();
}

TEST_F(Service, ADeviceIsReleased) {
  connect();
  a_.strike(1, "xid-79");
  beat();
  const auto nodes = v1::Nodes::NewStub(channel_);
  v1::ReleaseDeviceRequest request;
  request.set_name("a");
  request.set_kind(v1::ResourceSpec::CPU);
  request.set_index(1);
  v1::Node node;
  ASSERT_TRUE(nodes->ReleaseDevice(context().get(), request, &node).ok());
  EXPECT_EQ(node.name(), "a");
  EXPECT_EQ(node.devices(1).quarantine(), "");
  request.set_index(9);
  const absl::Status unknown = from_grpc(nodes->ReleaseDevice(context().get(), request, &node));
  EXPECT_EQ(reason(unknown), "DEVICE_NOT_FOUND");
  EXPECT_NE(metrics_.render(*manager_).find("telar_devices{kind=\"CPU\",state=\"quarantined\"} 0"), std::string::npos);
}

TEST_F(Service, LogsAreFollowedAcrossEpochs) {
  const std::string name = running(small_spec(1));
  append(name, 1, 0, "one ");
  v1::ReadLogRequest request;
  request.set_name(name);
  request.set_follow(true);
  auto following = context();
  auto reader = jobs_->ReadLog(following.get(), request);
  v1::LogChunk chunk;
  std::string text;
  while (text != "one " && reader->Read(&chunk)) text += chunk.data();
  append(name, 1, 4, "two ");
  FakeWorker::die(worker_of(name).rank(name, 1, 0), 139, v1::CRASH, "");
  run();
  pass(seconds(1));
  run();
  ASSERT_EQ(get(name).epoch(), 2u);
  append(name, 2, 0, "three");
  worker_of(name).finish_all();
  beat();
  while (reader->Read(&chunk)) text += chunk.data().empty() ? "" : std::to_string(chunk.epoch()) + ":" + chunk.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "one 1:two 2:three");

  // One epoch, from an offset, without following.
  request.set_follow(false);
  request.set_epoch(1);
  request.set_offset(4);
  auto once_context = context();
  auto once = jobs_->ReadLog(once_context.get(), request);
  ASSERT_TRUE(once->Read(&chunk));
  EXPECT_EQ(chunk.data(), "two ");
  EXPECT_EQ(chunk.offset(), 4u);
  EXPECT_FALSE(once->Read(&chunk));
  EXPECT_TRUE(once->Finish().ok());

  request.set_rank(7);
  auto bad_context = context();
  auto bad = jobs_->ReadLog(bad_context.get(), request);
  EXPECT_FALSE(bad->Read(&chunk));
  EXPECT_EQ(violations(from_grpc(bad->Finish())).at(0).field, "rank");
}

TEST_F(Service, HeartbeatsAreAnsweredAndChangesPushed) {
  FakeWorker worker("a", 2);
  v1::RegisterNodeRequest registration;
  registration.set_node("a");
  registration.set_incarnation("1");
  registration.add_devices()->set_kind(v1::ResourceSpec::CPU);
  v1::RegisterNodeResponse answer;
  ASSERT_TRUE(cluster_->RegisterNode(context().get(), registration, &answer).ok());
  EXPECT_EQ(answer.lease().seconds(), 10);
  EXPECT_EQ(answer.heartbeat_interval().seconds(), 2);

  auto beating = context();
  auto stream = cluster_->Heartbeat(beating.get());
  v1::HeartbeatResponse response;
  ASSERT_TRUE(stream->Write(worker.next_heartbeat()));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.assignments_size(), 0);
  const std::string name = submit(small_spec(1));
  manager_->tick();
  ASSERT_TRUE(stream->Read(&response));  // Unasked.
  ASSERT_EQ(response.assignments_size(), 1);
  EXPECT_EQ(response.assignments(0).desired(), v1::Assignment::RUN);
  EXPECT_EQ(response.assignments(0).plan().job(), name);

  // The name is taken while the stream is open.
  registration.set_incarnation("2");
  EXPECT_EQ(cluster_->RegisterNode(context().get(), registration, &answer).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  stream->WritesDone();
  while (stream->Read(&response)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(cluster_->RegisterNode(context().get(), registration, &answer).ok());

  auto stale_context = context();
  auto stale = cluster_->Heartbeat(stale_context.get());
  ASSERT_TRUE(stale->Write(worker.next_heartbeat()));
  EXPECT_FALSE(stale->Read(&response));
  EXPECT_EQ(reason(from_grpc(stale->Finish())), "NOT_REGISTERED");
}

TEST_F(Service, DecidesAboutCheckpoints) {
  const std::string name = running();
  const auto stub = v1::Checkpoints::NewStub(channel_);
  v1::LastCommitRequest ask;
  ask.set_job(name);
  ask.set_epoch(1);
  v1::LastCommitResponse last;
  ASSERT_TRUE(stub->LastCommit(context().get(), ask, &last).ok());
  EXPECT_FALSE(last.any());
  v1::CommitCheckpointRequest commit;
  commit.set_job(name);
  commit.set_epoch(1);
  commit.set_step(12);
  v1::CommitCheckpointResponse done;
  ASSERT_TRUE(stub->CommitCheckpoint(context().get(), commit, &done).ok());
  ASSERT_TRUE(stub->LastCommit(context().get(), ask, &last).ok());
  EXPECT_TRUE(last.any());
  EXPECT_EQ(last.epoch(), 1u);
  EXPECT_EQ(last.step(), 12u);
  commit.set_epoch(2);
  EXPECT_EQ(reason(from_grpc(stub->CommitCheckpoint(context().get(), commit, &done))), "STALE_EPOCH");
}

TEST_F(Service, RanksMeet) {
  const std::string name = running();
  std::thread late([&] {
    v1::PutKeyRequest put;
    put.set_job(name);
    put.set_epoch(1);
    for (const char* key : {"rank0", "rank1"}) {
      put.set_key(key);
      put.set_value(std::string(key) + "'s address");
      v1::PutKeyResponse done;
      EXPECT_TRUE(rendezvous_->PutKey(context().get(), put, &done).ok());
    }
  });
  v1::GetKeysRequest get_keys;
  get_keys.set_job(name);
  get_keys.set_epoch(1);
  get_keys.add_keys("rank1");
  get_keys.add_keys("rank0");
  v1::GetKeysResponse values;
  const grpc::Status met = rendezvous_->GetKeys(context().get(), get_keys, &values);
  late.join();
  ASSERT_TRUE(met.ok()) << met.error_message();
  EXPECT_EQ(values.values(0), "rank1's address");

  get_keys.add_keys("rank2");
  get_keys.add_keys("rank3");
  const grpc::Status timeout = rendezvous_->GetKeys(context(milliseconds(500)).get(), get_keys, &values);
  EXPECT_EQ(timeout.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_NE(timeout.error_message().find("2 keys are still missing: rank2, rank3"), std::string::npos)
      << timeout.error_message();

  // Whoever waits is told at once when the epoch ends.
  std::thread ender([&] { EXPECT_TRUE(cancel(name).ok()); });
  const grpc::Status over = rendezvous_->GetKeys(context().get(), get_keys, &values);
  ender.join();
  EXPECT_EQ(reason(from_grpc(over)), "STALE_EPOCH");
}

TEST_F(Service, HealthIsToldByService) {
  auto health = grpc::health::v1::Health::NewStub(channel_);
  for (const char* service : {"", "telar.v1.Jobs", "telar.v1.Cluster", "telar.v1.Rendezvous"}) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    ASSERT_TRUE(health->Check(context().get(), request, &response).ok()) << service;
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING) << service;
  }
  grpc::health::v1::HealthCheckRequest unknown;
  unknown.set_service("telar.v1.Nothing");
  grpc::health::v1::HealthCheckResponse response;
  EXPECT_EQ(health->Check(context().get(), unknown, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

// The messages of the reflection service live in the library; only their descriptors can be had.
std::set<std::string> reflected_services(const std::shared_ptr<grpc::Channel>& channel) {
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  auto* factory = google::protobuf::MessageFactory::generated_factory();
  const auto* request_type = pool->FindMessageTypeByName("grpc.reflection.v1alpha.ServerReflectionRequest");
  const auto* response_type = pool->FindMessageTypeByName("grpc.reflection.v1alpha.ServerReflectionResponse");
  std::unique_ptr<google::protobuf::Message> request(factory->GetPrototype(request_type)->New());
  std::unique_ptr<google::protobuf::Message> response(factory->GetPrototype(response_type)->New());
  request->GetReflection()->SetString(request.get(), request_type->FindFieldByName("list_services"), "*");
  const std::string bytes = request->SerializeAsString();
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer sent(&slice, 1), received;

  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + seconds(20));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  call->Write(sent, nullptr);
  queue.Next(&tag, &ok);
  call->Read(&received, nullptr);
  queue.Next(&tag, &ok);
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  std::vector<grpc::Slice> slices;
  received.Dump(&slices);
  std::string text;
  for (const grpc::Slice& one : slices) text.append(reinterpret_cast<const char*>(one.begin()), one.size());
  response->ParseFromString(text);

  std::set<std::string> names;
  const auto* list_field = response_type->FindFieldByName("list_services_response");
  const auto& list = response->GetReflection()->GetMessage(*response, list_field);
  const auto* service_field = list.GetDescriptor()->FindFieldByName("service");
  for (int i = 0; i < list.GetReflection()->FieldSize(list, service_field); ++i) {
    const auto& one = list.GetReflection()->GetRepeatedMessage(list, service_field, i);
    names.insert(one.GetReflection()->GetString(one, one.GetDescriptor()->FindFieldByName("name")));
  }
  return names;
}

TEST_F(Service, ReflectionListsTheServices) {
  const std::set<std::string> names = reflected_services(channel_);
  EXPECT_TRUE(names.count("telar.v1.Jobs"));
  EXPECT_TRUE(names.count("telar.v1.Cluster"));
  EXPECT_TRUE(names.count("telar.v1.Rendezvous"));
}

TEST_F(Service, StopsSoonWithStreamsOpen) {
  const std::string name = running();
  v1::WatchJobRequest watch;
  watch.set_name(name);
  auto watching = context();
  auto reader = jobs_->WatchJob(watching.get(), watch);
  v1::WatchJobResponse response;
  ASSERT_TRUE(reader->Read(&response));
  auto beating = context();
  auto stream = cluster_->Heartbeat(beating.get());
  ASSERT_TRUE(stream->Write(a_.next_heartbeat()));
  v1::HeartbeatResponse assignments;
  ASSERT_TRUE(stream->Read(&assignments));

  const auto start = std::chrono::steady_clock::now();
  server_->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(2));
  while (reader->Read(&response)) {
  }
  const absl::Status status = from_grpc(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("resume with after_sequence 3"), std::string::npos) << status;
}

// Two ranks have files, of which the first needs three pieces; resumed in the middle, it goes on there.
TEST_F(Service, ReadTraceSendsTheFilesOfAllRanks) {
  run_root_ = scratch_.path("runs");
  server_.reset();
  SetUp();
  const std::string name = running();
  const std::string big(600 << 10, 'a'), small = "{}";
  for (const auto& [rank, text] : {std::pair(1, big), {3, small}}) {
    const std::string folder = get(name).run_dir() + "/traces/rank-" + std::to_string(rank);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/trace-12.json") << text;
  }
  const auto read = [&](uint64_t step, uint32_t rank, uint64_t offset, std::map<uint32_t, std::string>& files) {
    v1::ReadTraceRequest request;
    request.set_name(name);
    request.set_step(step);
    request.set_rank(rank);
    request.set_offset(offset);
    const auto reading = context();
    const auto reader = jobs_->ReadTrace(reading.get(), request);
    v1::TraceChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_LE(chunk.data().size(), 256u << 10);
      files[chunk.rank()] += chunk.data();
      const std::string& whole = chunk.rank() == 1 ? big : small;
      EXPECT_EQ(chunk.last(), chunk.offset() + chunk.data().size() == whole.size());
    }
    return from_grpc(reader->Finish());
  };
  std::map<uint32_t, std::string> all, rest, none;
  EXPECT_TRUE(read(12, 0, 0, all).ok());
  EXPECT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[1] == big && all[3] == small);
  EXPECT_TRUE(read(12, 1, 500 << 10, rest).ok());
  EXPECT_EQ(rest[1].size(), 100u << 10);
  EXPECT_EQ(rest[3], small);
  EXPECT_TRUE(read(12, 4, 0, none).ok());  // Behind the last.
  const absl::Status missing = read(13, 0, 0, none);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reason(missing), "TRACE_NOT_FOUND");
  EXPECT_TRUE(none.empty());
}

TEST_F(Service, RanksReadOneClock) {
  v1::ReadClockResponse first, second;
  ASSERT_TRUE(rendezvous_->ReadClock(context().get(), {}, &first).ok());
  ASSERT_TRUE(rendezvous_->ReadClock(context().get(), {}, &second).ok());
  EXPECT_FALSE(first.clock().empty());
  EXPECT_EQ(first.clock(), second.clock());
  EXPECT_LE(first.received_seconds(), first.replied_seconds());
  EXPECT_LE(first.replied_seconds(), second.received_seconds());
}

TEST_F(Service, ATakenPortIsNamed) {
  const auto second = Server::start({.listen = server_->address()}, manager_.get(), &metrics_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(server_->address()), std::string::npos) << second.status();
}

TEST_F(Service, MetricsTellOfJobsNodesAndCalls) {
  const std::string name = running();
  v1::GetVersionRequest nothing;
  v1::ListNodesResponse nodes;
  ASSERT_TRUE(jobs_->ListNodes(context().get(), {}, &nodes).ok());
  EXPECT_EQ(nodes.nodes_size(), 2);
  v1::Version version;
  ASSERT_TRUE(jobs_->GetVersion(context().get(), nothing, &version).ok());
  EXPECT_EQ(version.version(), TELAR_VERSION);
  metrics_.on_restart(v1::NODE_LOST);
  const std::string text = metrics_.render(*manager_);
  for (const std::string line : {"telar_jobs{state=\"RUNNING\"} 1", "telar_jobs{state=\"QUEUED\"} 0",
                                 "telar_job_restarts_total{reason=\"NODE_LOST\"} 1", "telar_nodes{state=\"READY\"} 2",
                                 "telar_devices{kind=\"CPU\",state=\"used\"} 4",
                                 "telar_rpc_seconds_count{method=\"ListNodes\"} 1", "telar_build_info{"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in\n" << text;
  }
  const std::string id = jobs::job_id(name);
  EXPECT_NE(text.find("telar_job_state{job_id=\"" + id + "\",state=\"RUNNING\"} 1"), std::string::npos) << text;
  EXPECT_EQ(worker_targets(manager_->metrics_addresses()),
            R"([{"labels":{},"targets":["127.0.0.1:9100","127.0.0.1:9100"]}])");
  EXPECT_EQ(worker_targets({}), "[]");
  ASSERT_TRUE(cancel(name).ok());
  run();
  EXPECT_EQ(metrics_.render(*manager_).find(id), std::string::npos);  // No series outlives its job.
}

}  // namespace
}  // namespace telar::server::rpc
