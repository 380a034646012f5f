// Queues, nodes, arrays and changes of jobs over the wire.
#include "common/channel.h"
#include "server/rpc/server.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::rpc {
namespace {

using tests::small_spec;

class SchedulingService : public tests::ManagerTest {
 protected:
  void SetUp() override {
    ManagerTest::SetUp();
    auto server = Server::start({.listen = "127.0.0.1:0"}, manager_.get(), &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    const auto channel = dial(server_->address());
    jobs_ = v1::Jobs::NewStub(channel);
    nodes_ = v1::Nodes::NewStub(channel);
  }
  void TearDown() override { server_.reset(); }

  template <typename Stub, typename Request, typename Response>
  static absl::Status call(Stub& stub,
                           grpc::Status (Stub::element_type::*method)(grpc::ClientContext*, const Request&, Response*),
                           const Request& request, Response& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return from_grpc(((*stub).*method)(&context, request, &response));
  }

  Metrics metrics_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Jobs::Stub> jobs_;
  std::unique_ptr<v1::Nodes::Stub> nodes_;
};

TEST_F(SchedulingService, NodesAreClosedOnceARequestAndListedByPages) {
  connect();
  v1::DrainNodeRequest drain;
  drain.set_name("b");
  drain.set_reason("fan");
  drain.set_request_id("1");
  v1::Node node;
  ASSERT_TRUE(call(nodes_, &v1::Nodes::Stub::DrainNode, drain, node).ok());
  EXPECT_EQ(node.scheduling(), v1::Node::DRAINED);
  EXPECT_EQ(node.devices_size(), 2);
  v1::UncordonNodeRequest uncordon;
  uncordon.set_name("b");
  uncordon.set_request_id("1");  // Of another method.
  ASSERT_TRUE(call(nodes_, &v1::Nodes::Stub::UncordonNode, uncordon, node).ok());
  EXPECT_EQ(node.scheduling(), v1::Node::OPEN);
  ASSERT_TRUE(call(nodes_, &v1::Nodes::Stub::DrainNode, drain, node).ok());
  EXPECT_EQ(node.scheduling(), v1::Node::DRAINED);  // As it was answered then.
  v1::CordonNodeRequest cordon;
  cordon.set_name("c");
  const absl::Status missing = call(nodes_, &v1::Nodes::Stub::CordonNode, cordon, node);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reason(missing), "NODE_NOT_FOUND");

  v1::ListNodesRequest list;
  list.set_page_size(1);
  v1::ListNodesResponse page;
  ASSERT_TRUE(call(jobs_, &v1::Jobs::Stub::ListNodes, list, page).ok());
  ASSERT_EQ(page.nodes_size(), 1);
  EXPECT_EQ(page.nodes(0).name(), "a");
  list.set_page_token(page.next_page_token());
  ASSERT_TRUE(call(jobs_, &v1::Jobs::Stub::ListNodes, list, page).ok());
  ASSERT_EQ(page.nodes_size(), 1);
  EXPECT_EQ(page.nodes(0).name(), "b");
  EXPECT_EQ(page.nodes(0).scheduling(), v1::Node::OPEN);
  EXPECT_EQ(page.next_page_token(), "");
  list.set_page_size(-1);
  EXPECT_EQ(call(jobs_, &v1::Jobs::Stub::ListNodes, list, page).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SchedulingService, ChangesArraysAndQueues) {
  connect();
  v1::CreateJobArrayRequest array;
  *array.mutable_spec() = small_spec(1);
  array.mutable_spec()->mutable_array()->set_size(2);
  v1::CreateJobArrayResponse tasks;
  ASSERT_TRUE(call(jobs_, &v1::Jobs::Stub::CreateJobArray, array, tasks).ok());
  ASSERT_EQ(tasks.jobs_size(), 2);
  v1::UpdateJobRequest update;
  update.mutable_job()->set_name(tasks.jobs(1).name());
  update.mutable_update_mask()->add_paths("spec.scheduling.priority");
  update.mutable_job()->mutable_spec()->mutable_scheduling()->set_priority(3);
  update.set_etag("never");
  v1::Job job;
  EXPECT_EQ(call(jobs_, &v1::Jobs::Stub::UpdateJob, update, job).code(), absl::StatusCode::kAborted);
  update.set_etag(tasks.jobs(1).etag());
  ASSERT_TRUE(call(jobs_, &v1::Jobs::Stub::UpdateJob, update, job).ok());
  EXPECT_EQ(job.spec().scheduling().priority(), 3);
  v1::ListQueuesResponse queues;
  ASSERT_TRUE(call(jobs_, &v1::Jobs::Stub::ListQueues, v1::ListQueuesRequest(), queues).ok());
  ASSERT_EQ(queues.queues_size(), 1);
  EXPECT_EQ(queues.queues(0).queued_jobs(), 2u);
}

}  // namespace
}  // namespace telar::server::rpc
