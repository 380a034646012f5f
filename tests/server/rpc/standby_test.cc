// A coordinator that does not lead, and clients that know several addresses.
#include "server/rpc/standby.h"

#include "common/channel.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/server.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::rpc {
namespace {

class Standbys : public tests::ManagerTest {
 protected:
  static absl::Status list(v1::Jobs::Stub& jobs, bool wait) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.set_wait_for_ready(wait);
    v1::ListJobsResponse response;
    return from_grpc(jobs.ListJobs(&context, {}, &response));
  }
  std::unique_ptr<Server> lead(const std::string& listen, uint64_t term = 0) {
    auto server = Server::start({.listen = listen, .term = term}, manager_.get(), &metrics_);
    EXPECT_TRUE(server.ok()) << server.status();
    return server.ok() ? *std::move(server) : nullptr;
  }
  static std::unique_ptr<Standby> stand_by(const std::string& listen, const std::string& leader) {
    auto standby = Standby::start(listen, {}, [leader] { return leader; });
    EXPECT_TRUE(standby.ok()) << standby.status();
    return standby.ok() ? *std::move(standby) : nullptr;
  }

  Metrics metrics_;
};

TEST_F(Standbys, RefuseEveryCallWithTheLeadersAddress) {
  const auto standby = stand_by("127.0.0.1:0", "10.0.0.9:7070");
  const auto channel = dial(standby->address());
  const auto jobs = v1::Jobs::NewStub(channel);
  absl::Status status = list(*jobs, true);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(reason(status), "NOT_LEADER");
  EXPECT_EQ(metadata(status)["leader"], "10.0.0.9:7070");
  EXPECT_NE(status.message().find("the leader is 10.0.0.9:7070"), absl::string_view::npos) << status;

  grpc::ClientContext context;
  const auto stream = v1::Cluster::NewStub(channel)->Heartbeat(&context);
  stream->Write({});
  v1::HeartbeatResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(reason(from_grpc(stream->Finish())), "NOT_LEADER");

  grpc::ClientContext health_context;
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(channel)->Check(&health_context, {}, &health).ok());
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  const auto taken = Standby::start(standby->address(), {}, [] { return ""; });
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kAlreadyExists) << taken.status();
}

TEST_F(Standbys, ClientsOfSeveralAddressesGoToTheOneThatServes) {
  auto standby = stand_by("127.0.0.1:0", "");
  auto server = lead("127.0.0.1:0");
  const std::string first = standby->address(), second = server->address();
  const auto jobs = v1::Jobs::NewStub(dial(first + "," + second));
  ASSERT_TRUE(list(*jobs, true).ok());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(list(*jobs, false).ok());  // Never to the other.

  // They change places.
  server.reset();
  standby.reset();
  open();
  server = lead(first);
  standby = stand_by(second, first);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(list(*jobs, true).ok());
  server.reset();
  standby.reset();
  const absl::Status nobody = list(*jobs, false);
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnavailable) << nobody;
}

TEST_F(Standbys, WorkersAreToldTheTerm) {
  const auto server = lead("127.0.0.1:0", 17);
  const auto cluster = v1::Cluster::NewStub(dial(server->address()));
  ASSERT_TRUE(a_.register_at(*manager_).ok());
  grpc::ClientContext context;
  const auto stream = cluster->Heartbeat(&context);
  ASSERT_TRUE(stream->Write(a_.next_heartbeat()));
  v1::HeartbeatResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const auto found = context.GetServerInitialMetadata().find(kTermHeader);
  ASSERT_NE(found, context.GetServerInitialMetadata().end());
  EXPECT_EQ(std::string(found->second.data(), found->second.size()), "17");
  context.TryCancel();
}

}  // namespace
}  // namespace telar::server::rpc
