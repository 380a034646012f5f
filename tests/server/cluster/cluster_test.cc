#include "server/cluster/cluster.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/errors.h"
#include "tests/fakes/fake_clock.h"

namespace telar::server::cluster {
namespace {

using std::chrono::milliseconds;

v1::RegisterNodeRequest worker(const std::string& node, const std::string& incarnation, uint32_t devices = 2) {
  v1::RegisterNodeRequest request;
  request.set_node(node);
  request.set_incarnation(incarnation);
  request.set_listen_host("10.0.0.1");
  request.set_metrics_address(node + ":9100");
  for (uint32_t i = 0; i < devices; ++i) {
    v1::Device* device = request.add_devices();
    device->set_kind(v1::ResourceSpec::CPU);
    device->set_index(i);
  }
  return request;
}

class ClusterTest : public testing::Test {
 protected:
  v1::Node::State state() { return cluster_.nodes().at(0).state(); }
  // Devices that may be given out.
  uint32_t free(v1::ResourceSpec::Kind kind = v1::ResourceSpec::CPU) {
    const Inventory inventory = cluster_.inventory();
    uint32_t count = 0;
    for (const Inventory::Device& device : inventory.devices) {
      const Inventory::Node& node = inventory.nodes[device.node];
      count += device.kind == kind && node.ready && node.open && device.holder.empty() && !device.quarantined ? 1 : 0;
    }
    return count;
  }
  fakes::FakeClock clock_;
  Cluster cluster_{&clock_, milliseconds(10'000)};
};

TEST_F(ClusterTest, LeaseGoesFromReadyOverUnknownToLost) {
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  clock_.advance(milliseconds(4'999));
  EXPECT_EQ(state(), v1::Node::READY);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(state(), v1::Node::UNKNOWN);
  clock_.advance(milliseconds(4'999));
  EXPECT_TRUE(cluster_.expire().empty());
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  EXPECT_EQ(state(), v1::Node::READY);
  clock_.advance(milliseconds(10'000));
  EXPECT_EQ(state(), v1::Node::LOST);
  EXPECT_EQ(cluster_.expire(), std::vector<std::string>{"a"});
  EXPECT_TRUE(cluster_.expire().empty());  // Told once.
  EXPECT_TRUE(cluster_.lost("a"));
  const absl::Status late = cluster_.heartbeat("a", "1", false);
  EXPECT_EQ(reason(late), "LEASE_EXPIRED");
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  EXPECT_EQ(state(), v1::Node::READY);
}

TEST_F(ClusterTest, ANewIncarnationReplacesADisconnectedOne) {
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  cluster_.set_connected("a", "1", true);
  EXPECT_EQ(cluster_.register_node(worker("a", "2")).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());  // Itself again.
  cluster_.set_connected("a", "1", false);
  ASSERT_TRUE(cluster_.register_node(worker("a", "2")).ok());
  EXPECT_EQ(cluster_.heartbeat("a", "1", false).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(cluster_.heartbeat("a", "2", false).ok());
}

TEST_F(ClusterTest, ANodeThatHungUpGetsNothingUntilItSpeaksAgain) {
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  cluster_.set_connected("a", "1", true);
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  EXPECT_EQ(free(), 2u);
  cluster_.set_connected("a", "1", true);  // It dials anew, and the old line ends a little later.
  cluster_.set_connected("a", "1", false);
  EXPECT_EQ(free(), 2u);
  cluster_.set_connected("a", "1", false);
  EXPECT_EQ(free(), 0u);
  EXPECT_FALSE(cluster_.lost("a"));
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  EXPECT_EQ(free(), 2u);
}

TEST_F(ClusterTest, AHeartbeatOfAnEarlierRegistrationIsRefused) {
  const uint64_t first = cluster_.register_node(worker("a", "1")).value();
  const uint64_t second = cluster_.register_node(worker("a", "1")).value();
  EXPECT_EQ(reason(cluster_.heartbeat("a", "1", false, first)), "NOT_REGISTERED");
  EXPECT_EQ(free(), 0u);
  EXPECT_TRUE(cluster_.heartbeat("a", "1", false, second).ok());
  EXPECT_EQ(free(), 2u);
}

TEST_F(ClusterTest, OffersDevicesOnlyWhereItKnowsWhatRuns) {
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  EXPECT_EQ(free(), 0u);  // Not reported yet.
  ASSERT_TRUE(cluster_.heartbeat("a", "1", true).ok());
  EXPECT_EQ(free(), 0u);  // A stranger runs there.
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  EXPECT_EQ(free(), 2u);
  EXPECT_EQ(free(v1::ResourceSpec::GPU), 0u);
  clock_.advance(milliseconds(5'000));
  EXPECT_EQ(free(), 0u);  // Unknown.
}

TEST_F(ClusterTest, HeldDevicesAreNotFree) {
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  const Slot slot = cluster_.slot(cluster_.inventory(), 0);
  EXPECT_EQ(slot.node, "a");
  cluster_.hold(slot.node, slot.device, "job");
  EXPECT_EQ(free(), 1u);
  EXPECT_EQ(cluster_.count(v1::ResourceSpec::CPU).registered, 2u);
  EXPECT_EQ(cluster_.nodes().at(0).devices(0).job(), "job");
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());  // A reconnect frees nothing.
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  EXPECT_EQ(free(), 1u);
  cluster_.release("job");
  EXPECT_EQ(free(), 2u);
}

TEST_F(ClusterTest, AClosedNodeGivesNothingAndIsDrainedWhenItIsEmpty) {
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  EXPECT_EQ(cluster_.nodes().at(0).scheduling(), v1::Node::OPEN);
  cluster_.set_scheduling("a", v1::Node::CORDONED, "its fan");
  EXPECT_EQ(free(), 0u);
  EXPECT_EQ(cluster_.nodes().at(0).scheduling_reason(), "its fan");
  cluster_.set_scheduling("a", v1::Node::OPEN, "");
  EXPECT_EQ(free(), 2u);
  EXPECT_EQ(cluster_.nodes().at(0).scheduling_reason(), "");
  cluster_.hold("a", worker("a", "1").devices(0), "job");
  cluster_.set_scheduling("a", v1::Node::DRAINING, "");
  EXPECT_EQ(cluster_.nodes().at(0).scheduling(), v1::Node::DRAINING);
  cluster_.release("job");
  EXPECT_EQ(cluster_.nodes().at(0).scheduling(), v1::Node::DRAINED);
  EXPECT_EQ(cluster_.scheduling("a"), v1::Node::DRAINING);
  // Closed before it was ever seen.
  EXPECT_FALSE(cluster_.known("b"));
  cluster_.set_scheduling("b", v1::Node::CORDONED, "");
  EXPECT_TRUE(cluster_.known("b"));
  ASSERT_EQ(cluster_.nodes().size(), 2u);
  EXPECT_EQ(cluster_.nodes().at(1).state(), v1::Node::LOST);
}

TEST_F(ClusterTest, ADeviceInQuarantineIsNotFreeAndEveryChangeOfThatIsNews) {
  ASSERT_TRUE(cluster_.register_node(worker("a", "1")).ok());
  ASSERT_TRUE(cluster_.heartbeat("a", "1", false).ok());
  ASSERT_EQ(free(), 2u);
  const DeviceId device{"a", v1::ResourceSpec::CPU, 1};
  uint64_t version = cluster_.version();
  const auto news = [&] { return std::exchange(version, cluster_.version()) != cluster_.version(); };
  cluster_.quarantine().set(device, {"xid-79", clock_.wall()});
  EXPECT_TRUE(news());
  EXPECT_EQ(free(), 1u);
  EXPECT_EQ(cluster_.node("a").devices(0).quarantine(), "");
  EXPECT_EQ(cluster_.node("a").devices(1).quarantine(), "xid-79");
  cluster_.quarantine().set_stale(device, true, clock_.wall());
  EXPECT_TRUE(news());
  cluster_.quarantine().set_stale(device, true, clock_.wall());
  EXPECT_FALSE(news());
  cluster_.quarantine().clear(device);
  EXPECT_TRUE(news());
  EXPECT_EQ(free(), 1u);
  cluster_.quarantine().set_stale(device, false, clock_.wall());
  EXPECT_TRUE(news());
  EXPECT_EQ(free(), 2u);
  cluster_.quarantine().clear(device);
  EXPECT_FALSE(news());
}

TEST_F(ClusterTest, InventoryNumbersDomainsOverAllNodesAndKinds) {
  v1::RegisterNodeRequest a = worker("a", "1", 4);
  a.mutable_devices(1)->set_nvlink_domain(1);
  a.mutable_devices(3)->set_kind(v1::ResourceSpec::GPU);
  (*a.mutable_labels())["rack"] = "r1";
  ASSERT_TRUE(cluster_.register_node(worker("b", "1", 1)).ok());
  ASSERT_TRUE(cluster_.register_node(a).ok());
  const Inventory inventory = cluster_.inventory();
  ASSERT_EQ(inventory.nodes.size(), 2u);
  EXPECT_EQ(inventory.nodes[0].name, "a");
  EXPECT_EQ(inventory.nodes[0].labels.at(kRackLabel), "r1");
  EXPECT_EQ(inventory.nodes[1].first, 4u);
  std::vector<uint32_t> domains;
  for (const Inventory::Device& device : inventory.devices) domains.push_back(device.domain);
  EXPECT_EQ(domains, (std::vector<uint32_t>{0, 1, 0, 2, 3}));
  EXPECT_EQ(inventory.domains, 4u);
}

TEST_F(ClusterTest, RoomCountsGroupsInsideDomains) {
  EXPECT_EQ(cluster_.room(v1::ResourceSpec::CPU, 2).widest, 0u);
  v1::RegisterNodeRequest a = worker("a", "1", 6);
  for (v1::Device& device : *a.mutable_devices()) device.set_nvlink_domain(device.index() / 3);
  ASSERT_TRUE(cluster_.register_node(a).ok());
  ASSERT_TRUE(cluster_.register_node(worker("b", "1", 5)).ok());
  const Cluster::Room room = cluster_.room(v1::ResourceSpec::CPU, 2);
  EXPECT_EQ(room.groups, 1u + 1u + 2u);
  EXPECT_EQ(room.widest, 5u);
  EXPECT_EQ(room.node, "b");
  cluster_.hold("b", worker("b", "1").devices(0), "job");  // What is taken comes back.
  EXPECT_EQ(cluster_.room(v1::ResourceSpec::CPU, 5).groups, 1u);
  EXPECT_EQ(cluster_.room(v1::ResourceSpec::GPU, 1).groups, 0u);
}

TEST_F(ClusterTest, AnUnseenNodeHasALeaseFromTheStart) {
  EXPECT_FALSE(cluster_.lost("b"));
  clock_.advance(milliseconds(10'000));
  EXPECT_TRUE(cluster_.lost("b"));
}

}  // namespace
}  // namespace telar::server::cluster
