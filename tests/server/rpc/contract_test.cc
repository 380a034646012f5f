// What every method of the contract promises alike, found by its descriptor so that a new one cannot be forgotten: who
// changes something takes a request_id and does it once, who lists does it by pages, who updates takes a mask and an
// etag.
#include <gmock/gmock.h>
#include <google/protobuf/field_mask.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "common/channel.h"
#include "server/auth/access.h"
#include "server/rpc/server.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using testing::ElementsAreArray;
using testing::UnorderedElementsAre;
using tests::small_spec;
using Made = std::unique_ptr<Message>;

std::vector<const MethodDescriptor*> methods_of_people(bool changing) {
  std::vector<const MethodDescriptor*> all;
  const auto* file = v1::Job::descriptor()->file();
  for (int s = 0; s < file->service_count(); ++s) {
    for (int m = 0; m < file->service(s)->method_count(); ++m) {
      const MethodDescriptor* method = file->service(s)->method(m);
      const auth::Access* access = auth::access_of(file->service(s)->full_name() + "/" + method->name());
      if (access != nullptr && access->changes == changing) all.push_back(method);
    }
  }
  return all;
}

bool begins(const MethodDescriptor& method, const std::string& verb) { return method.name().rfind(verb, 0) == 0; }

bool has(const Descriptor& message, const std::string& name, FieldDescriptor::Type type) {
  const FieldDescriptor* field = message.FindFieldByName(name);
  return field != nullptr && field->type() == type && !field->is_repeated();
}

const FieldDescriptor* field(const Message& message, const std::string& name) {
  return message.GetDescriptor()->FindFieldByName(name);
}

TEST(ContractForm, WhoeverChangesSomethingTakesARequestId) {
  ASSERT_GE(methods_of_people(true).size(), 8u);
  for (const MethodDescriptor* method : methods_of_people(true)) {
    EXPECT_TRUE(has(*method->input_type(), "request_id", FieldDescriptor::TYPE_STRING)) << method->full_name();
  }
  for (const MethodDescriptor* method : methods_of_people(false)) {
    EXPECT_EQ(method->input_type()->FindFieldByName("request_id"), nullptr) << method->full_name();
    const bool looks =
        begins(*method, "Get") || begins(*method, "List") || begins(*method, "Watch") || begins(*method, "Read");
    EXPECT_TRUE(looks) << method->full_name() << " is said to change nothing in server/auth/access.cc";
  }
}

TEST(ContractForm, WhoeverUpdatesTakesAMaskAndAnEtag) {
  int updates = 0;
  for (const MethodDescriptor* method : methods_of_people(true)) {
    if (!begins(*method, "Update")) continue;
    ++updates;
    const FieldDescriptor* mask = method->input_type()->FindFieldByName("update_mask");
    ASSERT_NE(mask, nullptr) << method->full_name();
    EXPECT_EQ(mask->message_type(), google::protobuf::FieldMask::descriptor());
    EXPECT_TRUE(has(*method->input_type(), "etag", FieldDescriptor::TYPE_STRING)) << method->full_name();
    EXPECT_TRUE(has(*method->output_type(), "etag", FieldDescriptor::TYPE_STRING)) << method->full_name();
  }
  EXPECT_GE(updates, 1);
}

TEST(ContractForm, WhoeverListsDoesItByPages) {
  int lists = 0;
  for (const MethodDescriptor* method : methods_of_people(false)) {
    if (!begins(*method, "List")) continue;
    ++lists;
    EXPECT_TRUE(has(*method->input_type(), "page_size", FieldDescriptor::TYPE_INT32)) << method->full_name();
    EXPECT_TRUE(has(*method->input_type(), "page_token", FieldDescriptor::TYPE_STRING)) << method->full_name();
    EXPECT_TRUE(has(*method->output_type(), "next_page_token", FieldDescriptor::TYPE_STRING)) << method->full_name();
  }
  EXPECT_GE(lists, 3);
}

// What workers and ranks say has its own number instead, by which a repeated word is known.
TEST(ContractForm, WhatNodesSayIsKnownAgainByItsNumber) {
  const std::map<std::string, std::string> keys = {{"RegisterNode", "incarnation"},
                                                   {"Heartbeat", "sequence"},
                                                   {"AppendLog", "offset"},
                                                   {"ReportEvents", "first_line"},
                                                   {"ReportFlight", "epoch"},
                                                   {"PutKey", "key"},
                                                   {"GetKeys", "keys"},
                                                   {"CommitCheckpoint", "step"},
                                                   {"LastCommit", "epoch"},
                                                   {"ReadClock", "epoch"}};
  const auto* file = v1::HeartbeatRequest::descriptor()->file();
  for (int s = 0; s < file->service_count(); ++s) {
    for (int m = 0; m < file->service(s)->method_count(); ++m) {
      const MethodDescriptor& method = *file->service(s)->method(m);
      ASSERT_EQ(keys.count(method.name()), 1u) << method.full_name() << ": how is a repeated one known?";
      EXPECT_NE(method.input_type()->FindFieldByName(keys.at(method.name())), nullptr) << method.full_name();
    }
  }
}

class Contract : public tests::ManagerTest {
 protected:
  void SetUp() override {
    ManagerTest::SetUp();
    serve();
    connect();
    manager_->set_queues({{.name = "default"}, {.name = "low"}, {.name = "urgent", .priority = 1}});
    a_.strike(0, "xid-48");  // For ReleaseDevice.
    beat();
    job_ = submit(small_spec(4));
    doomed_ = submit(small_spec(4));
  }
  void TearDown() override { server_.reset(); }
  void serve() {
    auto server = Server::start({.listen = "127.0.0.1:0"}, manager_.get(), &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    channel_ = dial(server_->address());
  }
  void restart() {
    server_.reset();
    open();
    serve();
    connect();
  }

  static Made make(const Descriptor* type) {
    return Made(google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
  }
  absl::StatusOr<Made> call(const MethodDescriptor& method, const Message& request) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    grpc::ByteBuffer sent, answer;
    bool own = false;
    (void)grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(request, &sent, &own);
    const std::string path = "/" + method.service()->full_name() + "/" + method.name();
    const auto reader = stub.PrepareUnaryCall(&context, path, sent, &queue);
    reader->StartCall();
    grpc::Status status;
    reader->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    if (!status.ok()) return from_grpc(status);
    Made response = make(method.output_type());
    (void)grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&answer, response.get());
    return response;
  }

  // A request of each method that changes something, and one that it is to be undone by: then a second time shows.
  struct Change {
    std::function<Made()> request;
    std::function<void()> undo = [] {};
  };
  template <typename Request>
  static std::function<Made()> of(const std::function<void(Request&)>& fill) {
    return [fill] {
      auto request = std::make_unique<Request>();
      fill(*request);
      return request;
    };
  }
  void set_priority(int priority) {
    v1::UpdateJobRequest request;
    request.mutable_job()->set_name(job_);
    request.mutable_job()->mutable_spec()->mutable_scheduling()->set_priority(priority);
    request.mutable_update_mask()->add_paths("spec.scheduling.priority");
    EXPECT_TRUE(manager_->update(request).ok());
  }
  std::map<std::string, Change> changes() {
    const auto open = [this] { EXPECT_TRUE(manager_->set_scheduling("a", v1::Node::OPEN, "", "").ok()); };
    const auto close = [this] { EXPECT_TRUE(manager_->set_scheduling("a", v1::Node::CORDONED, "", "").ok()); };
    const auto fail = [this] {
      a_.strike(0, "xid-48");
      beat();
    };
    return {
        {"CreateJob", {of<v1::CreateJobRequest>([](auto& one) { *one.mutable_spec() = small_spec(1); })}},
        {"CreateJobArray", {of<v1::CreateJobArrayRequest>([](auto& one) {
           *one.mutable_spec() = small_spec(1);
           one.mutable_spec()->mutable_array()->set_size(3);
         })}},
        {"UpdateJob",
         {of<v1::UpdateJobRequest>([this](auto& one) {
            one.mutable_job()->set_name(job_);
            one.mutable_job()->mutable_spec()->mutable_scheduling()->set_priority(7);
            one.mutable_update_mask()->add_paths("spec.scheduling.priority");
          }),
          [this] { set_priority(3); }}},
        {"CancelJob", {of<v1::CancelJobRequest>([this](auto& one) { one.set_name(doomed_); })}},
        {"TraceJob", {of<v1::TraceJobRequest>([this](auto& one) {
           one.set_name(job_);
           one.set_step(50);
         })}},
        {"CordonNode", {of<v1::CordonNodeRequest>([](auto& one) { one.set_name("a"); }), open}},
        {"UncordonNode", {of<v1::UncordonNodeRequest>([](auto& one) { one.set_name("a"); }), close}},
        {"DrainNode", {of<v1::DrainNodeRequest>([](auto& one) { one.set_name("a"); }), open}},
        {"ReleaseDevice",
         {of<v1::ReleaseDeviceRequest>([](auto& one) {
            one.set_name("a");
            one.set_kind(v1::ResourceSpec::CPU);
          }),
          fail}},
    };
  }
  // All that people can see.
  std::string seen() {
    std::string all;
    const v1::ListJobsResponse jobs = manager_->list({}).value();
    for (const v1::Job& job : jobs.jobs()) {
      all += job.DebugString() + std::to_string(manager_->events(job.name(), 0, 1000)->events.size()) + "\n";
    }
    for (const v1::Node& node : manager_->nodes()) all += node.DebugString();
    return all;
  }

  Metrics metrics_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::string job_;
  std::string doomed_;  // Is cancelled.
};

TEST_F(Contract, WhatIsAskedTwiceIsDoneOnceAndAnsweredAlike) {
  std::map<std::string, std::string> answers;
  std::map<std::string, Made> requests;
  std::map<std::string, Change> known = changes();
  for (const MethodDescriptor* method : methods_of_people(true)) {
    SCOPED_TRACE(method->full_name());
    ASSERT_EQ(known.count(method->name()), 1u) << "a request of it is missing in this test";
    Change& change = known.at(method->name());
    Made request = change.request();
    request->GetReflection()->SetString(request.get(), field(*request, "request_id"), "one");
    auto first = call(*method, *request);
    ASSERT_TRUE(first.ok()) << first.status();
    change.undo();
    const std::string then = seen();
    auto again = call(*method, *request);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->DebugString(), (*first)->DebugString());
    EXPECT_EQ(seen(), then);
    answers[method->name()] = (*first)->DebugString();
    requests[method->name()] = std::move(request);
  }
  restart();
  const std::string then = seen();
  for (const MethodDescriptor* method : methods_of_people(true)) {
    SCOPED_TRACE(method->full_name());
    const auto again = call(*method, *requests.at(method->name()));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->DebugString(), answers.at(method->name()));
  }
  EXPECT_EQ(seen(), then);
}

// The same requests under another id are others, and do something: what the test above sees would show.
TEST_F(Contract, AnotherRequestIdIsAnotherRequest) {
  std::map<std::string, Change> known = changes();
  for (const MethodDescriptor* method : methods_of_people(true)) {
    if (method->name() == "CancelJob") continue;  // There is nothing to cancel a second time.
    SCOPED_TRACE(method->full_name());
    Change& change = known.at(method->name());
    for (const char* id : {"one", "two"}) {
      change.undo();
      Made request = change.request();
      request->GetReflection()->SetString(request.get(), field(*request, "request_id"), id);
      const std::string before = seen();
      ASSERT_TRUE(call(*method, *request).ok());
      EXPECT_NE(seen(), before) << id;
    }
  }
}

TEST_F(Contract, AStaleEtagChangesNothing) {
  int tried = 0;
  std::map<std::string, Change> known = changes();
  for (const MethodDescriptor* method : methods_of_people(true)) {
    Made request = known.at(method->name()).request();
    const FieldDescriptor* etag = field(*request, "etag");
    if (etag == nullptr) continue;
    SCOPED_TRACE(method->full_name());
    ++tried;
    const std::string before = seen();
    request->GetReflection()->SetString(request.get(), etag, "stale");
    const auto refused = call(*method, *request);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(reason(refused.status()), "ETAG_MISMATCH");
    EXPECT_EQ(seen(), before);
    request->GetReflection()->SetString(request.get(), etag, get(begins(*method, "Cancel") ? doomed_ : job_).etag());
    EXPECT_TRUE(call(*method, *request).ok());
  }
  EXPECT_EQ(tried, 2);
}

TEST_F(Contract, PagesOfEverySizeAreTheWhole) {
  for (int i = 0; i < 4; ++i) submit(small_spec(1));
  ASSERT_TRUE(manager_->set_scheduling("b", v1::Node::CORDONED, "", "").ok());
  std::map<std::string, size_t> totals;
  for (const MethodDescriptor* method : methods_of_people(false)) {
    if (!begins(*method, "List")) continue;
    SCOPED_TRACE(method->full_name());
    const auto page = [&](int size, std::string& token) {
      Made request = make(method->input_type());
      request->GetReflection()->SetInt32(request.get(), field(*request, "page_size"), size);
      request->GetReflection()->SetString(request.get(), field(*request, "page_token"), token);
      std::vector<std::string> entries;
      const auto answer = call(*method, *request);
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (!answer.ok()) return entries;
      const Message& response = **answer;
      for (int f = 0; f < method->output_type()->field_count(); ++f) {
        const FieldDescriptor* list = method->output_type()->field(f);
        if (!list->is_repeated()) continue;
        for (int i = 0; i < response.GetReflection()->FieldSize(response, list); ++i) {
          entries.push_back(response.GetReflection()->GetRepeatedMessage(response, list, i).DebugString());
        }
      }
      token = response.GetReflection()->GetString(response, field(response, "next_page_token"));
      return entries;
    };
    std::string token;
    const std::vector<std::string> whole = page(0, token);
    EXPECT_EQ(token, "");
    totals[method->name()] = whole.size();
    for (int size = 1; size <= static_cast<int>(whole.size()) + 1; ++size) {
      std::vector<std::string> all;
      token.clear();
      do {
        const std::vector<std::string> some = page(size, token);
        ASSERT_FALSE(some.empty());
        EXPECT_LE(some.size(), static_cast<size_t>(size));
        EXPECT_TRUE(token.empty() || some.size() == static_cast<size_t>(size));
        all.insert(all.end(), some.begin(), some.end());
      } while (!token.empty());
      EXPECT_THAT(all, ElementsAreArray(whole));
    }
    Made request = make(method->input_type());
    request->GetReflection()->SetInt32(request.get(), field(*request, "page_size"), -1);
    EXPECT_EQ(call(*method, *request).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(totals, UnorderedElementsAre(testing::Pair("ListJobs", 6), testing::Pair("ListNodes", 2),
                                           testing::Pair("ListQueues", 3)));
}

}  // namespace
}  // namespace telar::server::rpc
