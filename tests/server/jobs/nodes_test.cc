// Cordon, uncordon and drain as requests.
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using tests::small_spec;

class Nodes : public tests::ManagerTest {};

TEST_F(Nodes, ARepeatedRequestIsAnsweredAsTheFirstWas) {
  connect();
  const v1::Node first = manager_->set_scheduling("a", v1::Node::CORDONED, "fan", "cordon:1").value();
  EXPECT_EQ(first.scheduling(), v1::Node::CORDONED);
  EXPECT_EQ(first.scheduling_reason(), "fan");
  EXPECT_EQ(manager_->set_scheduling("a", v1::Node::OPEN, "", "uncordon:1")->scheduling(), v1::Node::OPEN);
  open();
  // The answer of then; nothing is done again.
  EXPECT_EQ(manager_->set_scheduling("a", v1::Node::CORDONED, "fan", "cordon:1")->SerializeAsString(),
            first.SerializeAsString());
  connect();
  EXPECT_EQ(manager_->nodes()[0].scheduling(), v1::Node::OPEN);
}

TEST_F(Nodes, OnlyWhatIsKnownCanBeClosed) {
  const absl::Status status = manager_->set_scheduling("nobody", v1::Node::DRAINING, "", "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reason(status), "NODE_NOT_FOUND");
  connect();
  EXPECT_EQ(manager_->set_scheduling("a", v1::Node::CORDONED, std::string(501, 'x'), "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(Nodes, ACordonedNodeKeepsWhatRunsAndGetsNothingNew) {
  connect();
  const std::string name = submit(small_spec(2));
  run();
  const std::string node = get(name).placement(0).node();
  ASSERT_TRUE(manager_->set_scheduling(node, v1::Node::CORDONED, "", "").ok());
  run();
  EXPECT_EQ(state(name), "RUNNING");
  EXPECT_EQ(get(name).epoch(), 1u);
  const std::string four = submit(small_spec(4));
  run();
  EXPECT_EQ(get(four).waiting().reason(), v1::Waiting::NODES);
  EXPECT_FALSE(get(four).waiting().never());
  EXPECT_EQ(get(four).waiting().unblock(), "these are open again: " + node);
}

}  // namespace
}  // namespace telar::server::jobs
