#include "worker/train/coordinator_commit.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "common/channel.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "tests/fakes/dev_ca.h"

namespace telar::train {
namespace {

using std::chrono::seconds;

class SaysYes final : public v1::Checkpoints::Service {
  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest*,
                                v1::CommitCheckpointResponse*) override {
    return grpc::Status::OK;
  }
};

// A coordinator behind certificates, in a process of its own: a server in ours would poll for the client, too. Made
// before anything of gRPC's runs here.
class Coordinator {
 public:
  explicit Coordinator(const TlsFiles& tls) {
    EXPECT_EQ(pipe(asked_.data()), 0);
    EXPECT_EQ(pipe(told_.data()), 0);
    process_ = fork();
    if (process_ == 0) serve(tls);
  }
  ~Coordinator() { kill_it(); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // On this port, or one of its choice: 0. Returns the port.
  int start(int port) {
    EXPECT_EQ(write(asked_[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
    EXPECT_EQ(read(told_[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
    EXPECT_NE(port, 0);
    return port;
  }
  void kill_it() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
    for (const int end : {asked_[0], asked_[1], told_[0], told_[1]}) close(end);
  }

 private:
  [[noreturn]] void serve(const TlsFiles& tls) {
    int port = 0;
    if (read(asked_[0], &port, sizeof(port)) != static_cast<ssize_t>(sizeof(port))) _exit(1);
    SaysYes service;
    grpc::ServerBuilder builder;
    set_keepalive(builder);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), server_credentials(tls), &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (write(told_[1], &port, sizeof(port)) != static_cast<ssize_t>(sizeof(port))) _exit(1);
    for (;;) pause();
  }

  std::array<int, 2> asked_{}, told_{};
  pid_t process_ = 0;
};

// Whoever asks again polls only while it asks: a handshake that is begun in one try has to come to its end in it.
TEST(DialCommitter, IsAnsweredSoonAfterTheCoordinatorIsBack) {
  const fakes::DevCa ca(testing::TempDir() + "/coordinator_commit_test_ca", "a");
  tls_to_environment(ca.node("a"));
  Coordinator coordinator(ca.coordinator()), next(ca.coordinator());
  v1::RankPlan plan;
  plan.set_job("projects/default/jobs/one");
  plan.set_epoch(1);
  const int port = coordinator.start(0);
  plan.set_rendezvous_address("127.0.0.1:" + std::to_string(port));
  const auto committer = dial_committer(plan);
  ASSERT_TRUE(committer->commit({.step = 1, .attempt = 1}).ok());

  coordinator.kill_it();
  auto answer = std::async([&] { return committer->commit({.step = 2, .attempt = 1}); });
  EXPECT_EQ(answer.wait_for(seconds(4)), std::future_status::timeout) << "so long it is away";
  next.start(port);
  EXPECT_EQ(answer.wait_for(seconds(11)), std::future_status::ready) << "twice the longest pause between two tries";
  committer->set_patience(std::chrono::milliseconds(0));
  EXPECT_TRUE(answer.get().ok());
}

}  // namespace
}  // namespace telar::train
