// Which coordinator a worker obeys, and when it gives a connection up.
#include "worker/agent/coordinator_link.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/fakes/fake_coordinator.h"

namespace telar::agent {
namespace {

class CoordinatorLinkTest : public testing::Test {
 protected:
  v1::RegisterNodeRequest self() {
    v1::RegisterNodeRequest request;
    request.set_node("a");
    request.set_incarnation("1");
    return request;
  }
  // A coordinator of that term comes up where the one before was.
  void next_leader(uint64_t term) {
    fake_.stop();
    heartbeats_ = fake_.locked([](const auto& fake) { return fake.heartbeats().size(); });
    fake_.set_term(term);
    fake_.assign({});
    ++version_;  // An answer of the one before may come late.
    fake_.start();
  }
  CoordinatorLink::Told told() {
    return {.on_assignments = [this](const v1::HeartbeatResponse& answer) { obeyed_ = answer.version(); },
            .on_registered = [] {},
            .on_revoked = [this] { ++revocations_; }};
  }
  bool told(CoordinatorLink& link) {  // So many heartbeats that an answer must have come.
    const size_t wanted = heartbeats_ + 3;
    const auto heard = [wanted](const auto& fake) { return fake.heartbeats().size() >= wanted; };
    for (int i = 0; i < 1000; ++i) {
      link.set_status({});  // As the daemon does, round by round: nothing is said before it after a registration.
      if (fake_.wait(heard, std::chrono::milliseconds(20))) return true;
    }
    return false;
  }

  fakes::FakeCoordinator fake_;
  Line<v1::Cluster> line_{fake_.address()};
  prometheus::Registry registry_;
  metrics::DaemonMetrics metrics_{registry_, "1", "a"};
  std::atomic<uint64_t> obeyed_{0};  // Version of the newest answer that was handed on.
  std::atomic<int> revocations_{0};
  uint64_t version_ = 1;  // That the fake gives out.
  size_t heartbeats_ = 0;
};

TEST_F(CoordinatorLinkTest, NoLeaderOfBeforeIsObeyed) {
  fake_.set_term(5);
  CoordinatorLink link(&line_, self(), &metrics_, told());
  link.start();
  ASSERT_TRUE(told(link));
  EXPECT_EQ(obeyed_, version_);

  next_leader(4);
  ASSERT_TRUE(told(link));
  EXPECT_LT(obeyed_, version_);

  next_leader(6);
  ASSERT_TRUE(told(link));
  EXPECT_EQ(obeyed_, version_);
}

TEST_F(CoordinatorLinkTest, TheLastWordIsHeardAndNothingIsSaidBehindIt) {
  CoordinatorLink link(&line_, self(), &metrics_, told());
  link.start();
  ASSERT_TRUE(told(link));
  EXPECT_FALSE(link.wait_goodbye(std::chrono::milliseconds(0)));
  NodeStatus gone;
  gone.leave = v1::HeartbeatRequest::GONE;
  link.set_status(gone);
  EXPECT_TRUE(link.wait_goodbye(std::chrono::seconds(20)));
  fake_.locked([](const auto& fake) {
    EXPECT_EQ(fake.heartbeats().back().leave(), v1::HeartbeatRequest::GONE);
    EXPECT_EQ(fake.registrations().size(), 1u);
  });
}

TEST_F(CoordinatorLinkTest, ACoordinatorThatIsAwayHearsNoGoodbye) {
  fake_.stop();
  CoordinatorLink link(&line_, self(), &metrics_, told());
  link.start();
  NodeStatus gone;
  gone.leave = v1::HeartbeatRequest::GONE;
  link.set_status(gone);
  EXPECT_FALSE(link.wait_goodbye(std::chrono::milliseconds(50)));
}

TEST_F(CoordinatorLinkTest, ARevokedNodeIsToldSoUntilItIsLetInAgain) {
  CoordinatorLink link(&line_, self(), &metrics_, told());
  link.start();
  ASSERT_TRUE(told(link));
  EXPECT_EQ(revocations_, 0);
  fake_.revoke(true);
  for (int i = 0; i < 1000 && revocations_ < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(revocations_, 2);
  fake_.revoke(false);
  heartbeats_ = fake_.locked([](const auto& fake) { return fake.heartbeats().size(); });
  EXPECT_TRUE(told(link));
}

TEST_F(CoordinatorLinkTest, ASilentOneIsDialledAnewWithinItsLease) {
  CoordinatorLink link(&line_, self(), &metrics_, told());
  link.start();
  ASSERT_TRUE(told(link));
  fake_.fall_silent(true);
  const auto start = std::chrono::steady_clock::now();
  while (fake_.locked([](const auto& fake) { return fake.registrations().size(); }) < 2) {
    link.set_status({});
    fake_.wait([](const auto& fake) { return fake.registrations().size() >= 2; }, std::chrono::milliseconds(20));
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2)) << "the fake one's lease";
  }
  const auto peers = fake_.locked([](const auto& fake) { return fake.peers(); });
  EXPECT_NE(peers[0], peers[1]);  // Nobody could have told that the old connection was dead.
  fake_.fall_silent(false);
  heartbeats_ = fake_.locked([](const auto& fake) { return fake.heartbeats().size(); });
  EXPECT_TRUE(told(link));
}

}  // namespace
}  // namespace telar::agent
