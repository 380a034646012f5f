// The store in a real etcd: what every store must do, and what only one with several coordinators can get wrong.
#include "server/store/etcd_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <set>

#include "tests/fakes/dev_ca.h"
#include "tests/fakes/etcd_server.h"
#include "tests/server/scratch.h"
#include "tests/server/store/store_contract.h"

namespace telar::server::store {
namespace {

using std::chrono::seconds;
using SteadyClock = std::chrono::steady_clock;

constexpr const char* kMissing = "etcd is not installed (Debian package etcd-server)";

// Calls again until it is true, at most 20 s.
template <typename Condition>
bool eventually(Condition condition) {
  const auto end = SteadyClock::now() + seconds(20);
  while (!condition()) {
    if (SteadyClock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// One coordinator's part: a connection, the leadership, and, while it leads, the store.
struct Coordinator {
  explicit Coordinator(const fakes::EtcdServer& server, const std::string& address, seconds ttl = seconds(30))
      : Coordinator(std::vector<std::string>{server.endpoint()}, address, ttl) {}
  Coordinator(const std::vector<std::string>& endpoints, const std::string& address, seconds ttl,
              const EtcdAccess& access = {})
      : client(endpoints, access),
        leadership(&client, {.address = address, .ttl = ttl, .on_lost = [this](const std::string&) { ++lost; }}) {}

  bool lead() {
    return eventually([&] { return leadership.campaign().value_or(false); });
  }
  absl::Status open(EtcdOptions options = {}) {
    auto opened = open_etcd(&client, &leadership, std::move(options));
    if (opened.ok()) store = *std::move(opened);
    return opened.status();
  }

  std::atomic<int> lost{0};
  EtcdClient client;
  Leadership leadership;
  std::unique_ptr<Store> store;
};

// All tests of this program share one etcd; each contract test has a prefix of its own.
fakes::EtcdServer& shared_server() {
  static tests::Scratch scratch;
  static fakes::EtcdServer server(scratch.path("etcd"));
  return server;
}

class EtcdDatabase final : public Database {
 public:
  std::string missing() const override { return fakes::EtcdServer::installed() ? "" : kMissing; }
  absl::StatusOr<std::unique_ptr<Store>> open() override {
    if (!client_) client_ = std::make_unique<EtcdClient>(std::vector<std::string>{shared_server().endpoint()});
    leadership_ = std::make_unique<Leadership>(
        client_.get(), LeadershipOptions{.prefix = prefix_, .address = "here", .ttl = seconds(60)});
    const auto leads = leadership_->campaign();
    if (!leads.ok()) return leads.status();
    if (!*leads) return absl::UnavailableError("the leader of before is still there");
    return open_etcd(client_.get(), leadership_.get(), {.prefix = prefix_});
  }
  void close() override { leadership_.reset(); }

 private:
  static std::string next_prefix() {
    static int count = 0;
    return "/contract-" + std::to_string(++count) + "/";
  }

  const std::string prefix_ = next_prefix();
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<Leadership> leadership_;
};

INSTANTIATE_TEST_SUITE_P(Etcd, StoreContract, testing::Values([] { return std::make_unique<EtcdDatabase>(); }));

class EtcdStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fakes::EtcdServer::installed()) GTEST_SKIP() << kMissing;
    server_ = std::make_unique<fakes::EtcdServer>(scratch_.path("etcd"));
    ASSERT_TRUE(server_->ready());
  }

  tests::Scratch scratch_;
  std::unique_ptr<fakes::EtcdServer> server_;
};

TEST_F(EtcdStoreTest, OneLeadsAndTheNextOneTakesOverWhenItIsGone) {
  Coordinator second(*server_, "b:2", seconds(3));
  {
    Coordinator first(*server_, "a:1", seconds(3));
    ASSERT_TRUE(first.lead());
    EXPECT_FALSE(second.leadership.campaign().value());
    EXPECT_EQ(second.leadership.leader(), "a:1");
    // Renewed: it still leads after more than its lease.
    const auto end = SteadyClock::now() + seconds(5);
    while (SteadyClock::now() < end) {
      ASSERT_FALSE(second.leadership.campaign().value());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_TRUE(first.leadership.holds());
  }
  // It gave up the key, so nobody has to wait for the lease.
  EXPECT_TRUE(second.leadership.campaign().value());
  EXPECT_EQ(second.leadership.leader(), "b:2");
}

TEST_F(EtcdStoreTest, ADeposedLeaderWritesNothingMore) {
  Coordinator first(*server_, "a:1");
  ASSERT_TRUE(first.lead());
  ASSERT_TRUE(first.open().ok());
  ASSERT_TRUE(first.store->commit(batch_of("a", "first", 1, "r1")).ok());
  // Its key goes without its knowing, as when its lease ends while it sleeps.
  etcdserverpb::TxnRequest take;
  take.add_success()->mutable_request_delete_range()->set_key(first.leadership.key());
  ASSERT_TRUE(first.client.txn(take, SteadyClock::now() + seconds(5)).ok());
  Coordinator second(*server_, "b:2");
  ASSERT_TRUE(second.lead());
  ASSERT_TRUE(second.open().ok());
  EXPECT_GT(second.leadership.term(), first.leadership.term());
  EXPECT_TRUE(first.leadership.holds());  // By the clock.

  const absl::Status refused = first.store->commit(batch_of("a", "stale", 2, "r2"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_EQ(first.lost, 1);
  EXPECT_FALSE(first.leadership.holds());
  EXPECT_EQ(second.store->jobs()->at(0).blob, "first");
  EXPECT_FALSE(second.store->answer("r2").value().has_value());
  EXPECT_TRUE(second.store->commit(batch_of("a", "second", 2, "r3")).ok());
  EXPECT_EQ(second.lost, 0);
}

TEST_F(EtcdStoreTest, ALeaderWhoseLeaseCannotBeRenewedKnowsItByTheClock) {
  Coordinator first(*server_, "a:1", seconds(2));
  ASSERT_TRUE(first.lead());
  ASSERT_TRUE(first.open().ok());
  server_->signal(SIGSTOP);
  // Nobody says yes or no to it, so it waits; but not longer than it leads.
  const absl::Status status = first.store->commit(batch_of("a", "x", 1, "r1"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(eventually([&] { return first.lost == 1; }));
  server_->signal(SIGCONT);
}

TEST_F(EtcdStoreTest, ACommitOutlivesARestartOfEtcd) {
  Coordinator first(*server_, "a:1", seconds(60));
  ASSERT_TRUE(first.lead());
  ASSERT_TRUE(first.open().ok());
  const int64_t before = first.leadership.fence().version;
  server_->stop();
  absl::Status status = absl::UnknownError("not yet");
  std::thread commit([&] { status = first.store->commit(batch_of("a", "x", 1, "r1")); });
  server_->start();
  commit.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(first.leadership.fence().version, before);
  EXPECT_EQ(first.store->events("a", 0, 10)->size(), 1u);
}

// What got no answer may be on its way still; it must not be done when something newer has been written.
TEST_F(EtcdStoreTest, WhatWasSentBeforeTheFenceWasRenewedCountsNoMore) {
  Coordinator first(*server_, "a:1", seconds(60));
  ASSERT_TRUE(first.lead());
  ASSERT_TRUE(first.open().ok());
  const Fence before = first.leadership.fence();
  const auto late = [&](const Fence& fence) {
    etcdserverpb::TxnRequest request;
    for (const auto& compare : fence.compares) *request.add_compare() = compare;
    etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
    put->set_key("/telar/jobs/a");
    put->set_value("late");
    return first.client.txn(request, SteadyClock::now() + seconds(5))->succeeded();
  };
  ASSERT_TRUE(first.leadership.renew_fence(before.version).ok());
  ASSERT_TRUE(first.store->commit(batch_of("a", "newer", 1, "r1")).ok());
  EXPECT_FALSE(late(before));
  EXPECT_EQ(first.store->jobs()->at(0).blob, "newer");
  EXPECT_TRUE(late(first.leadership.fence()));
  // A fence that has moved on already is not moved again.
  const int64_t version = first.leadership.fence().version;
  ASSERT_TRUE(first.leadership.renew_fence(before.version).ok());
  EXPECT_EQ(first.leadership.fence().version, version);
}

TEST_F(EtcdStoreTest, ABatchInPartsCountsOnlyOnceItIsWhole) {
  Coordinator coordinator(*server_, "a:1", seconds(60));
  ASSERT_TRUE(coordinator.lead());
  std::string stop_at;
  struct Stopped {};
  const auto failpoint = [&](const char* point) {
    if (stop_at == point) throw Stopped();  // As if we had died there: the object is thrown away.
  };
  const auto reopened = [&] {
    coordinator.store.reset();
    return coordinator.open({.failpoint = failpoint});
  };
  ASSERT_TRUE(reopened().ok());
  ASSERT_TRUE(coordinator.store->commit(batch_of("a", "first", 1, "r1")).ok());
  Batch large;
  large.job = JobRow{"a", "large"};
  for (uint64_t i = 2; i <= 300; ++i) large.events.push_back({i, i, "staged"});
  stop_at = "staged";
  EXPECT_THROW(coordinator.store->commit(large).IgnoreError(), Stopped);
  stop_at.clear();
  ASSERT_TRUE(reopened().ok());
  EXPECT_EQ(coordinator.store->events("a", 0, 1000)->size(), 1u);
  EXPECT_EQ(coordinator.store->jobs()->at(0).blob, "first");
  // The same numbers again, for fewer events: none of the old ones shows.
  large.events.resize(150);  // 2 to 151.
  for (EventRow& event : large.events) event.blob = "again";
  ASSERT_TRUE(coordinator.store->commit(large).ok());
  auto events = coordinator.store->events("a", 1, 1000);
  ASSERT_EQ(events->size(), 150u);
  for (const EventRow& event : *events) ASSERT_EQ(event.blob, "again");
  ASSERT_TRUE(coordinator.store->commit(batch_of("a", "more", 152, "r3")).ok());
  EXPECT_EQ(coordinator.store->events("a", 151, 1000)->at(0).blob, "event 152");

  // What a commit erases is erased by the next life.
  Batch thin;
  thin.job = JobRow{"a", "thin"};
  thin.step_stride = 50;
  thin.erase_events = {1};
  stop_at = "committed";
  EXPECT_THROW(coordinator.store->commit(thin).IgnoreError(), Stopped);
  stop_at.clear();
  ASSERT_TRUE(reopened().ok());
  events = coordinator.store->events("a", 0, 1000);
  ASSERT_EQ(events->size(), 4u);  // Steps 50, 100 and 150, and the last, which is of no step.
  EXPECT_EQ(events->front().step, 50u);

  // Jobs that came together are all there in the next life, wherever this one ended.
  std::vector<Batch> tasks;
  for (int i = 0; i < 60; ++i) {
    tasks.push_back(batch_of("t" + std::to_string(i), "task", 1, "r4"));
    if (i > 0) tasks.back().answer.reset();
  }
  stop_at = "part";
  EXPECT_THROW(coordinator.store->commit_all(tasks).IgnoreError(), Stopped);
  stop_at.clear();
  ASSERT_TRUE(reopened().ok());
  EXPECT_EQ(coordinator.store->jobs()->size(), 61u);
  EXPECT_EQ(coordinator.store->events("t59", 0, 10)->size(), 1u);
  EXPECT_FALSE(coordinator.store->commit_all(tasks).ok());
  tasks[0].answer.reset();
  for (Batch& task : tasks) task.events[0].sequence = 2;
  EXPECT_TRUE(coordinator.store->commit_all(tasks).ok());
}

TEST_F(EtcdStoreTest, WhatIsTooLargeIsRefusedBeforeAnythingIsWritten) {
  Coordinator coordinator(*server_, "a:1");
  ASSERT_TRUE(coordinator.lead());
  ASSERT_TRUE(coordinator.open().ok());
  Batch batch = batch_of("a", std::string(2 << 20, 'x'), 1, "r1");
  absl::Status status = coordinator.store->commit(batch);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("jobs/a has 2097"), absl::string_view::npos) << status;
  batch = batch_of("a", "", 1, "r1");
  batch.events[0].blob.resize(2 << 20);
  status = coordinator.store->commit(batch);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("events/a/00000000000000000001 has 20972"), absl::string_view::npos) << status;
  EXPECT_TRUE(coordinator.store->jobs()->empty());
  EXPECT_TRUE(coordinator.store->commit(batch_of("a", std::string(1 << 20, 'x'), 1, "r1")).ok());
}

TEST_F(EtcdStoreTest, CoordinatorsMustShareTheirFolder) {
  EtcdClient client({server_->endpoint()});
  std::filesystem::create_directories(scratch_.path("one"));
  std::filesystem::create_directories(scratch_.path("two"));
  ASSERT_TRUE(check_shared(&client, "/telar/", scratch_.path("one")).ok());
  EXPECT_TRUE(check_shared(&client, "/telar/", scratch_.path("one")).ok());
  absl::Status status = check_shared(&client, "/telar/", scratch_.path("two"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(scratch_.path("two")), absl::string_view::npos) << status;
  std::ofstream(scratch_.path("two/cluster-id")) << "another\n";
  status = check_shared(&client, "/telar/", scratch_.path("two"));
  EXPECT_NE(status.message().find("says another"), absl::string_view::npos) << status;
}

TEST(EtcdUrl, IsCheckedWhole) {
  EXPECT_EQ(etcd_endpoints("etcd://a:2379,10.0.0.2:2379")->size(), 2u);
  for (const char* wrong :
       {"a:2379", "etcd://", "etcd://a", "etcd://a:2379,", "etcd://:1", "etcd://a:0", "etcd://a:x"}) {
    EXPECT_FALSE(etcd_endpoints(wrong).ok()) << wrong;
  }
}

TEST_F(EtcdStoreTest, AnotherAddressIsAskedWhenOneIsSilent) {
  EtcdClient client({"127.0.0.1:1", server_->endpoint()});
  etcdserverpb::RangeRequest request;
  request.set_key("x");
  EXPECT_TRUE(client.range(request, SteadyClock::now() + seconds(10)).ok());
}

// What it takes to say something to it that is kept.
absl::Status try_out(EtcdClient& client) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key("/telar/x");
  put->set_value("y");
  return client.txn(request, SteadyClock::now() + seconds(2)).status();
}

TEST_F(EtcdStoreTest, BehindCertificates) {
  const fakes::DevCa ca(scratch_.path("ca"), "a"), other(scratch_.path("other"), "a");
  const TlsFiles own = ca.coordinator();
  fakes::EtcdServer::Options options{.access = {.tls = ca.node("a")}};
  options.arguments = {"--cert-file",       own.cert, "--key-file",        own.key,
                       "--trusted-ca-file", own.ca,   "--client-cert-auth"};
  const fakes::EtcdServer server(scratch_.path("secure"), options);
  ASSERT_TRUE(server.ready());
  Coordinator coordinator(std::vector<std::string>{server.endpoint()}, "a:1", seconds(30), {.tls = ca.node("a")});
  ASSERT_TRUE(coordinator.lead());
  ASSERT_TRUE(coordinator.open().ok());
  EXPECT_TRUE(coordinator.store->commit(batch_of("a", "x", 1, "r1")).ok());
  const EtcdAccess kept_out[] = {{}, {.tls = ca.person()}, {.tls = other.node("a")}};
  for (const EtcdAccess& access : kept_out) {
    EtcdClient client({server.endpoint()}, access);
    EXPECT_TRUE(absl::IsUnavailable(try_out(client)));
  }
}

TEST_F(EtcdStoreTest, BehindAPassword) {
  if (access("/usr/bin/etcdctl", X_OK) != 0) GTEST_SKIP() << "no etcdctl (Debian package etcd-client)";
  const std::string control = "ETCDCTL_API=3 etcdctl --endpoints http://" + server_->endpoint() + " ";
  for (const char* command :
       {"user add root:secret", "user grant-role root root", "user add telar:pass word", "role add telar",
        "role grant-permission telar --prefix=true readwrite /telar/", "user grant-role telar telar", "auth enable"}) {
    std::string quoted = command;
    if (quoted == "user add telar:pass word") quoted = "user add 'telar:pass word'";
    ASSERT_EQ(std::system((control + quoted + " >>" + scratch_.path("etcdctl.log") + " 2>&1").c_str()), 0) << command;
  }
  const std::string file = scratch_.path("password");
  std::ofstream(file) << "pass word\n";
  Coordinator coordinator(std::vector<std::string>{server_->endpoint()}, "a:1", seconds(30),
                          {.user = "telar", .password_file = file});
  ASSERT_TRUE(coordinator.lead());
  ASSERT_TRUE(coordinator.open().ok());
  EXPECT_TRUE(coordinator.store->commit(batch_of("a", "x", 1, "r1")).ok());

  server_->stop();  // It forgets its tokens.
  server_->start();
  EXPECT_TRUE(eventually([&] { return coordinator.store->commit(batch_of("b", "x", 1, "r2")).ok(); }));
  EXPECT_EQ(coordinator.store->jobs()->size(), 2u);
  EXPECT_TRUE(coordinator.leadership.holds());

  EtcdClient nobody({server_->endpoint()});
  EXPECT_NE(try_out(nobody).message().find("user name is empty"), absl::string_view::npos) << try_out(nobody);
  std::ofstream(file) << "wrong\n";
  EtcdClient wrong({server_->endpoint()}, {.user = "telar", .password_file = file});
  EXPECT_NE(try_out(wrong).message().find("cannot log in as --etcd-user telar"), absl::string_view::npos);
  std::ofstream(file) << "";
  EXPECT_NE(try_out(wrong).message().find(file + " has no password in it"), absl::string_view::npos);
}

// Three members, of which any may die at any time, and of which one alone decides nothing.
class ThreeMembers : public testing::Test {
 protected:
  void SetUp() override {
    if (!fakes::EtcdServer::installed()) GTEST_SKIP() << kMissing;
    std::string cluster;
    for (int i = 0; i < 3; ++i) {
      peers_.push_back("http://127.0.0.1:" + std::to_string(fakes::EtcdServer::free_port()));
      cluster += (i == 0 ? "m" : ",m") + std::to_string(i) + "=" + peers_.back();
    }
    for (int i = 0; i < 3; ++i) {
      fakes::EtcdServer::Options options;
      options.name = "m" + std::to_string(i);
      options.peer = peers_[i];
      options.cluster = cluster;
      members_.push_back(std::make_unique<fakes::EtcdServer>(scratch_.path(options.name), options));
      endpoints_.push_back(members_.back()->endpoint());
    }
    for (const auto& member : members_) ASSERT_TRUE(member->ready());
  }
  static absl::Status commit(Coordinator& coordinator, int number) {
    const std::string id = "j" + std::to_string(number);
    return coordinator.store->commit(batch_of(id, "x", 1, "r" + id));
  }

  tests::Scratch scratch_;
  std::vector<std::string> peers_, endpoints_;
  std::vector<std::unique_ptr<fakes::EtcdServer>> members_;
};

TEST_F(ThreeMembers, EachOfThemMayDie) {
  Coordinator coordinator(endpoints_, "a:1", seconds(10));
  ASSERT_TRUE(coordinator.lead());
  ASSERT_TRUE(coordinator.open().ok());
  int stored = 0;
  for (const auto& member : members_) {  // One of them is the leader.
    member->stop();
    const auto start = SteadyClock::now();
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(commit(coordinator, stored++).ok());
    EXPECT_LT(SteadyClock::now() - start, seconds(8));
    member->start();
    ASSERT_TRUE(member->ready());
  }
  EXPECT_EQ(coordinator.lost, 0);
  EXPECT_EQ(coordinator.store->jobs()->size(), static_cast<size_t>(stored));
}

TEST_F(ThreeMembers, OneAloneDecidesNothing) {
  Coordinator first(endpoints_, "a:1", seconds(3));
  ASSERT_TRUE(first.lead());
  ASSERT_TRUE(first.open().ok());
  ASSERT_TRUE(commit(first, 0).ok());
  members_[0]->signal(SIGSTOP);
  members_[1]->signal(SIGSTOP);
  EXPECT_FALSE(commit(first, 1).ok());
  EXPECT_TRUE(eventually([&] { return first.lost == 1; }));
  EXPECT_FALSE(first.leadership.holds());
  Coordinator second(endpoints_, "b:2", seconds(3));
  EXPECT_FALSE(second.leadership.campaign().value_or(false));
  members_[0]->signal(SIGCONT);
  members_[1]->signal(SIGCONT);
  ASSERT_TRUE(second.lead());
  ASSERT_TRUE(second.open().ok());
  EXPECT_FALSE(commit(first, 2).ok());  // It writes nothing more.
  ASSERT_TRUE(commit(second, 3).ok());
  const auto jobs = second.store->jobs();
  ASSERT_TRUE(jobs.ok());
  std::set<std::string> ids;
  for (const JobRow& job : *jobs) ids.insert(job.id);
  EXPECT_EQ(ids.count("j0") + ids.count("j3"), 2u);
  EXPECT_EQ(ids.count("j2"), 0u);  // j1 was answered with an error: it may have been done.
}

}  // namespace
}  // namespace telar::server::store
