// Who gets in: the real services behind TLS, called by every method that the contract has.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <fstream>
#include <sstream>

#include "common/channel.h"
#include "server/auth/access.h"
#include "server/rpc/security_figures.h"
#include "server/rpc/server.h"
#include "tests/fakes/dev_ca.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::rpc {
namespace {

using auth::Role;
using auth::Scope;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using testing::HasSubstr;
using tests::small_spec;

std::vector<const MethodDescriptor*> every_method() {
  std::vector<const MethodDescriptor*> all;
  for (const auto* file : {v1::Job::descriptor()->file(), v1::HeartbeatRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) all.push_back(file->service(s)->method(m));
    }
  }
  return all;
}

std::string path_of(const MethodDescriptor& method) { return method.service()->full_name() + "/" + method.name(); }

// A request of node a, or of a person about project lab, where nothing is.
std::unique_ptr<Message> request_of(const MethodDescriptor& method) {
  std::unique_ptr<Message> request(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
  const auto set = [&](const char* name, const std::string& value) {
    const FieldDescriptor* field = method.input_type()->FindFieldByName(name);
    if (field == nullptr || field->type() != FieldDescriptor::TYPE_STRING) return;
    request->GetReflection()->SetString(request.get(), field, value);
  };
  const bool nodes = method.service()->name() == "Nodes";
  set("name", nodes ? "nowhere" : "projects/lab/jobs/none");
  set("parent", "projects/lab");
  set("job", "projects/lab/jobs/none");
  set("node", "a");
  if (auto* update = dynamic_cast<v1::UpdateJobRequest*>(request.get())) {
    update->mutable_job()->set_name("projects/lab/jobs/none");
  }
  return request;
}

class Security : public tests::ManagerTest {
 protected:
  static void SetUpTestSuite() {
    folder_ = new tests::Scratch;
    ca_ = new fakes::DevCa(folder_->path("ca"), "a b");
  }
  static void TearDownTestSuite() {
    delete ca_;
    ca_ = nullptr;
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override {
    ManagerTest::SetUp();
    write("tokens", all_tokens());
    write("revoked", "");
    start();
  }
  void TearDown() override {
    server_.reset();
    guard_.reset();
  }
  void start() {
    auto guard = auth::Guard::open({.tokens = scratch_.path("tokens"),
                                    .revoked = scratch_.path("revoked"),
                                    .audit = {.path = scratch_.path("audit.jsonl")},
                                    .calls_a_second = calls_,
                                    .burst = calls_,
                                    .streams = streams_},
                                   &clock_, [this](const std::string& name) { return manager_->get(name); });
    ASSERT_TRUE(guard.ok()) << guard.status();
    guard_ = std::move(*guard);
    auto server = Server::start({.listen = "127.0.0.1:0",
                                 .reflection = false,
                                 .stream_heartbeat = std::chrono::milliseconds(100),
                                 .tls = ca_->coordinator()},
                                manager_.get(), &metrics_, guard_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    people_ = dial(server_->address(), ca_->person());
    node_a_ = dial(server_->address(), ca_->node("a"));
    node_b_ = dial(server_->address(), ca_->node("b"));
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(scratch_.path(name)) << text; }
  static std::string line(const std::string& user, const std::string& roles, const std::string& expiry = "never") {
    return user + " " + sha256_hex("token-of-" + user) + " " + roles + " " + expiry + "\n";
  }
  static std::string all_tokens() {
    std::string text = line("everywhere", "*=viewer") + line("late", "*=admin", "2020-01-01T00:00:00Z") +
                       line("boss", "*=admin") + line("elsewhere", "other=admin");
    for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kAdmin}) {
      text += line(auth::role_name(role), std::string("lab=") + auth::role_name(role));
      text += line(std::string("all-") + auth::role_name(role), std::string("*=") + auth::role_name(role));
    }
    return text;
  }
  static std::unique_ptr<grpc::ClientContext> as(const std::string& user) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!user.empty()) context->AddMetadata("authorization", "Bearer token-of-" + user);
    return context;
  }
  // One call, unary or streaming: sends the request, reads to the end.
  static absl::Status call(const std::shared_ptr<grpc::Channel>& channel, const MethodDescriptor& method,
                           const std::string& user, const Message& request) {
    grpc::GenericStub stub(channel);
    const auto context = as(user);
    grpc::CompletionQueue queue;
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    const auto stream = stub.PrepareCall(context.get(), "/" + path_of(method), &queue);
    stream->StartCall(nullptr);
    wait();
    grpc::ByteBuffer bytes;
    bool own = false;
    (void)grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(request, &bytes, &own);
    stream->WriteLast(bytes, grpc::WriteOptions(), nullptr);
    wait();
    do {
      stream->Read(&bytes, nullptr);
    } while (wait());
    grpc::Status status;
    stream->Finish(&status, nullptr);
    wait();
    return from_grpc(status);
  }
  absl::Status call(const MethodDescriptor& method, const std::string& user) {
    const bool node = auth::access_of(path_of(method))->scope == Scope::kNode;
    return call(node ? node_a_ : people_, method, node ? "" : user, *request_of(method));
  }
  absl::StatusOr<v1::Job> create(const std::string& user, const std::string& parent) {
    v1::CreateJobRequest request;
    request.set_parent(parent);
    *request.mutable_spec() = small_spec(1);
    v1::Job job;
    const auto status = from_grpc(v1::Jobs::NewStub(people_)->CreateJob(as(user).get(), request, &job));
    if (!status.ok()) return status;
    return job;
  }
  absl::Status cancel(const std::string& user, const std::string& name) {
    v1::CancelJobRequest request;
    request.set_name(name);
    request.set_request_id("r-" + user);
    v1::Job job;
    return from_grpc(v1::Jobs::NewStub(people_)->CancelJob(as(user).get(), request, &job));
  }
  absl::Status register_node(const std::shared_ptr<grpc::Channel>& channel, const std::string& node) {
    v1::RegisterNodeRequest request;
    request.set_node(node);
    request.set_incarnation("i-" + node);
    request.set_listen_host("127.0.0.1");
    request.add_devices()->set_kind(v1::ResourceSpec::CPU);
    v1::RegisterNodeResponse response;
    return from_grpc(v1::Cluster::NewStub(channel)->RegisterNode(as("").get(), request, &response));
  }
  std::string audit() {
    std::ostringstream text;
    text << std::ifstream(scratch_.path("audit.jsonl")).rdbuf();
    return text.str();
  }

  static tests::Scratch* folder_;
  static fakes::DevCa* ca_;
  double calls_ = 1e6;  // A second; read by SetUp(), as is the next.
  int streams_ = 8;
  Metrics metrics_;
  std::unique_ptr<auth::Guard> guard_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> people_, node_a_, node_b_;
};
tests::Scratch* Security::folder_ = nullptr;
fakes::DevCa* Security::ca_ = nullptr;

bool refused(const absl::Status& status) { return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status); }

TEST_F(Security, EveryMethodHasItsRuleAndKeepsStrangersOut) {
  ASSERT_GE(every_method().size(), 20u);
  for (const MethodDescriptor* method : every_method()) {
    SCOPED_TRACE(path_of(*method));
    ASSERT_NE(auth::access_of(path_of(*method)), nullptr) << "no line in server/auth/access.cc";
    const auto request = request_of(*method);
    EXPECT_EQ(call(people_, *method, "", *request).code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(call(people_, *method, "nobody", *request).code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(call(people_, *method, "late", *request).code(), absl::StatusCode::kUnauthenticated);
  }
}

TEST_F(Security, EveryMethodOfPeopleWantsItsRoleAndNoMore) {
  for (const MethodDescriptor* method : every_method()) {
    SCOPED_TRACE(path_of(*method));
    const auth::Access& access = *auth::access_of(path_of(*method));
    if (access.scope == Scope::kNode) continue;
    const std::string where = access.scope == Scope::kCluster ? "all-" : "";
    const absl::Status enough = call(*method, where + auth::role_name(access.role));
    EXPECT_FALSE(refused(enough)) << enough;
    EXPECT_FALSE(refused(call(*method, where + "admin")));
    if (access.role > Role::kViewer) {
      const Role less = static_cast<Role>(static_cast<int>(access.role) - 1);
      EXPECT_EQ(reason(call(*method, where + auth::role_name(less))), "ROLE_REQUIRED");
    }
    if (access.scope == Scope::kCluster) {
      EXPECT_EQ(reason(call(*method, "admin")), "ROLE_REQUIRED");
    }
    if (access.scope == Scope::kProject || access.scope == Scope::kOwnJob) {
      EXPECT_EQ(reason(call(*method, "elsewhere")), "ROLE_REQUIRED");
    }
    // A node's certificate is no token.
    EXPECT_EQ(call(node_a_, *method, "", *request_of(*method)).code(), absl::StatusCode::kUnauthenticated);
  }
}

TEST_F(Security, EveryMethodOfNodesWantsTheNodesOwnCertificate) {
  for (const MethodDescriptor* method : every_method()) {
    SCOPED_TRACE(path_of(*method));
    if (auth::access_of(path_of(*method))->scope != Scope::kNode) continue;
    const auto request = request_of(*method);
    EXPECT_FALSE(refused(call(node_a_, *method, "", *request)));
    EXPECT_EQ(reason(call(people_, *method, "boss", *request)), "NO_CERTIFICATE");
    if (method->input_type()->FindFieldByName("node") == nullptr) continue;
    EXPECT_EQ(reason(call(node_b_, *method, "", *request)), "WRONG_NODE");
  }
  EXPECT_TRUE(register_node(node_b_, "b").ok());
}

TEST_F(Security, RanksSpeakForJobsOfTheirNodeOnly) {
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  ASSERT_TRUE(a_.beat(*manager_).ok());
  const std::string name = submit(small_spec(2));
  manager_->tick();
  ASSERT_EQ(get(name).placement(0).node(), "a");
  v1::PutKeyRequest request;
  request.set_job(name);
  request.set_epoch(1);
  request.set_key("k");
  v1::PutKeyResponse response;
  const auto put = [&](const std::shared_ptr<grpc::Channel>& channel) {
    return from_grpc(v1::Rendezvous::NewStub(channel)->PutKey(as("").get(), request, &response));
  };
  EXPECT_TRUE(put(node_a_).ok());
  EXPECT_EQ(reason(put(node_b_)), "WRONG_NODE");
  request.set_epoch(7);  // A rank that was left behind learns that it is over, wherever the job is now.
  EXPECT_EQ(reason(put(node_b_)), "STALE_EPOCH");
}

TEST_F(Security, AJobMayWaitOnlyForThoseThatItsOwnerMaySee) {
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  const std::string other = create("boss", "projects/other")->name(), own = create("boss", "projects/lab")->name();
  const auto submit_after = [&](const std::string& job, bool array) {
    v1::JobSpec spec = small_spec(1);
    spec.mutable_scheduling()->add_after()->set_job(job);
    if (!array) {
      v1::CreateJobRequest request;
      request.set_parent("projects/lab");
      *request.mutable_spec() = spec;
      v1::Job made;
      return from_grpc(v1::Jobs::NewStub(people_)->CreateJob(as("submitter").get(), request, &made));
    }
    v1::CreateJobArrayRequest request;
    request.set_parent("projects/lab");
    *request.mutable_spec() = spec;
    request.mutable_spec()->mutable_array()->set_size(2);
    v1::CreateJobArrayResponse made;
    return from_grpc(v1::Jobs::NewStub(people_)->CreateJobArray(as("submitter").get(), request, &made));
  };
  for (const bool array : {false, true}) {
    EXPECT_EQ(reason(submit_after(other, array)), "ROLE_REQUIRED");
    EXPECT_TRUE(submit_after(own, array).ok());
  }
  // The array is written down by its name.
  EXPECT_THAT(audit(), testing::ContainsRegex("CreateJobArray\",\"resource\":\"projects/lab/jobs/[a-z0-9]+-0\""));
}

TEST_F(Security, JobsHaveOwnersAndOnlyTheyOrOperatorsCancel) {
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  const auto job = create("submitter", "projects/lab");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->owner(), "submitter");
  write("tokens", all_tokens() + line("other", "lab=submitter"));
  guard_->refresh();
  EXPECT_EQ(reason(cancel("other", job->name())), "NOT_THE_OWNER");
  EXPECT_EQ(reason(cancel("viewer", job->name())), "ROLE_REQUIRED");
  EXPECT_TRUE(cancel("submitter", job->name()).ok());
  const auto second = create("submitter", "projects/lab");
  EXPECT_TRUE(cancel("operator", second->name()).ok());
  EXPECT_EQ(reason(create("submitter", "").status()), "ROLE_REQUIRED");  // projects/default

  const std::string text = audit();
  EXPECT_THAT(text, HasSubstr("\"user\":\"submitter\""));
  EXPECT_THAT(text,
              HasSubstr("\"method\":\"telar.v1.Jobs/CreateJob\",\"resource\":\"" + job->name() + "\",\"code\":\"OK\""));
  EXPECT_THAT(text,
              HasSubstr("\"request_id\":\"r-other\",\"code\":\"PERMISSION_DENIED\",\"reason\":\"NOT_THE_OWNER\""));
  EXPECT_EQ(text.find("token-of"), std::string::npos);
  EXPECT_EQ(text.find("Bearer"), std::string::npos);
}

TEST_F(Security, AListShowsWhatTheCallerMayView) {
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  ASSERT_TRUE(create("boss", "projects/lab").ok());
  ASSERT_TRUE(create("boss", "projects/other").ok());
  const auto count = [&](const std::string& user) {
    v1::ListJobsResponse response;
    EXPECT_TRUE(v1::Jobs::NewStub(people_)->ListJobs(as(user).get(), {}, &response).ok());
    return response.jobs_size();
  };
  EXPECT_EQ(count("viewer"), 1);
  EXPECT_EQ(count("elsewhere"), 1);
  EXPECT_EQ(count("everywhere"), 2);
}

TEST_F(Security, ARevokedNodeIsFencedAlsoOnAnOpenStream) {
  ASSERT_TRUE(register_node(node_a_, "a").ok());
  const auto context = as("");
  const auto stream = v1::Cluster::NewStub(node_a_)->Heartbeat(context.get());
  v1::HeartbeatRequest beat;
  beat.set_node("a");
  beat.set_incarnation("i-a");
  v1::HeartbeatResponse answer;
  ASSERT_TRUE(stream->Write(beat));
  ASSERT_TRUE(stream->Read(&answer));

  write("revoked", read_certificate(ca_->node("a").cert)->fingerprint + "\n");
  guard_->refresh();
  stream->Write(beat);
  while (stream->Read(&answer)) {
  }
  EXPECT_EQ(reason(from_grpc(stream->Finish())), "REVOKED");
  EXPECT_EQ(reason(register_node(node_a_, "a")), "REVOKED");
  EXPECT_TRUE(register_node(node_b_, "b").ok());
  write("revoked", "b\n");
  guard_->refresh();
  EXPECT_TRUE(register_node(node_a_, "a").ok());
  EXPECT_EQ(reason(register_node(node_b_, "b")), "REVOKED");
  EXPECT_EQ(guard_->figures().refused.at("REVOKED"), 3u);
}

TEST_F(Security, TokensChangeWhileItRuns) {
  const auto list = [&](const std::string& user) {
    v1::ListJobsResponse response;
    return from_grpc(v1::Jobs::NewStub(people_)->ListJobs(as(user).get(), {}, &response));
  };
  EXPECT_TRUE(list("boss").ok());
  write("tokens", line("new", "*=viewer"));
  guard_->refresh();
  EXPECT_EQ(reason(list("boss")), "UNKNOWN_TOKEN");
  EXPECT_TRUE(list("new").ok());
  write("tokens", "a line that is no good\n");
  guard_->refresh();
  EXPECT_TRUE(list("new").ok());  // What was there before stays.
  EXPECT_EQ(guard_->figures().reload_failures, 1u);
}

TEST_F(Security, AStreamEndsWithItsToken) {
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  const std::string name = submit(small_spec(1));
  write("tokens", all_tokens() + line("short", "*=viewer", "2027-01-15T08:01:00Z"));
  guard_->refresh();
  v1::WatchJobRequest request;
  request.set_name(name);
  v1::WatchJobResponse response;
  const auto stub = v1::Jobs::NewStub(people_);
  const auto short_context = as("short"), boss_context = as("boss");
  const auto of_short = stub->WatchJob(short_context.get(), request);
  const auto of_boss = stub->WatchJob(boss_context.get(), request);
  ASSERT_TRUE(of_short->Read(&response));
  ASSERT_TRUE(of_boss->Read(&response));
  clock_.advance(std::chrono::minutes(1));
  guard_->refresh();
  while (of_short->Read(&response)) {
  }
  EXPECT_EQ(of_short->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(of_boss->Read(&response));
  boss_context->TryCancel();
}

class Limits : public Security {
 protected:
  Limits() {
    calls_ = 5;
    streams_ = 1;
  }
};

TEST_F(Limits, TooMuchIsRefused) {
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  const std::string name = submit(small_spec(1));
  v1::WatchJobRequest request;
  request.set_name(name);
  v1::WatchJobResponse response;
  const auto stub = v1::Jobs::NewStub(people_);
  const auto first = as("boss");
  const auto watching = stub->WatchJob(first.get(), request);
  ASSERT_TRUE(watching->Read(&response));
  const auto second = as("boss");
  const auto refused_one = stub->WatchJob(second.get(), request);
  EXPECT_FALSE(refused_one->Read(&response));
  EXPECT_EQ(reason(from_grpc(refused_one->Finish())), "STREAM_LIMIT");
  first->TryCancel();

  v1::CreateJobRequest big;
  *big.mutable_spec() = small_spec(1);
  big.mutable_spec()->set_name(std::string(5'000, 'n'));
  v1::Job job;
  const absl::Status oversize = from_grpc(stub->CreateJob(as("boss").get(), big, &job));
  EXPECT_EQ(violations(oversize).at(0).field, "spec.name") << oversize;
  big.mutable_spec()->set_name("n");
  big.mutable_spec()->mutable_sample()->set_prompt(std::string(300'000, 'p'));
  EXPECT_EQ(violations(from_grpc(stub->CreateJob(as("boss").get(), big, &job))).at(0).field, "request");

  absl::Status status;
  for (int i = 0; i < 6 && status.ok(); ++i) {
    v1::ListJobsResponse jobs;
    status = from_grpc(stub->ListJobs(as("boss").get(), {}, &jobs));
  }
  EXPECT_EQ(reason(status), "RATE_LIMIT");
  EXPECT_EQ(retry_delay(status), std::chrono::milliseconds(200));
}

TEST_F(Security, FiguresTellOfRefusalsAndOfTheCertificatesEnd) {
  EXPECT_FALSE(create("nobody", "").ok());
  std::map<std::string, double> values;
  for (const auto& family : security_figures(*guard_, ca_->coordinator().cert)) {
    for (const auto& metric : family.metric) values[family.name] += metric.counter.value + metric.gauge.value;
  }
  EXPECT_EQ(values["telar_refused_calls_total"], 1);
  const auto until = std::chrono::system_clock::from_time_t(
      static_cast<time_t>(values["telar_tls_certificate_expiry_timestamp_seconds"]));
  EXPECT_EQ(until, read_certificate(ca_->coordinator().cert)->not_after);
}

}  // namespace
}  // namespace telar::server::rpc
