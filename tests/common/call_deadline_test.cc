// Deadlines that hold while gRPC's own sleep; that they do so for the programs: tests/faults/test_clock.py.
#include "common/call_deadline.h"

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "common/line.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "tests/fakes/loopback_listener.h"

namespace telar {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

using SilentPeer = fakes::LoopbackListener;  // Whoever connects hears nothing.

class CallDeadlineTest : public testing::Test {
 protected:
  // A call that gRPC itself does not end, as when it sleeps.
  grpc::Status call(Steady::duration longest, Line<v1::Cluster>& line, const std::function<void()>& meanwhile = {}) {
    grpc::ClientContext context;
    const CallDeadline deadline(context, longest);
    context.set_deadline(std::chrono::system_clock::now() + hours(1));
    context.set_wait_for_ready(true);
    std::thread other([&] {
      if (meanwhile) meanwhile();
      if (cancel_) context.TryCancel();
    });
    v1::RegisterNodeResponse response;
    const grpc::Status status = deadline.told(line.stub()->RegisterNode(&context, {}, &response));
    other.join();
    return status;
  }

  SilentPeer peer_;
  Line<v1::Cluster> line_{peer_.address()};
  bool cancel_ = false;
};

TEST_F(CallDeadlineTest, EndsWhatGrpcDoesNot) {
  const auto start = Steady::now();
  EXPECT_EQ(call(milliseconds(100), line_).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GE(Steady::now() - start, milliseconds(100));
}

TEST_F(CallDeadlineTest, TheNearestComesFirst) {
  const auto start = Steady::now();
  cancel_ = true;
  const grpc::Status far = call(hours(1), line_, [&] {
    cancel_ = false;
    EXPECT_EQ(call(milliseconds(10), line_).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    cancel_ = true;
  });
  EXPECT_LT(Steady::now() - start, hours(1));
  EXPECT_EQ(far.error_code(), grpc::StatusCode::CANCELLED) << "by somebody else";
}

TEST_F(CallDeadlineTest, AnAnswerStaysWhatItIs) {
  v1::Cluster::Service refuses;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&refuses);
  const auto server = builder.BuildAndStart();
  Line<v1::Cluster> line("127.0.0.1:" + std::to_string(port));
  EXPECT_EQ(call(hours(1), line).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  grpc::ClientContext context;
  const CallDeadline deadline(context, hours(1));
  EXPECT_TRUE(deadline.told(grpc::Status::OK).ok());
}

TEST_F(CallDeadlineTest, ALineIsRenewedWhereNoAnswerCame) {
  auto before = line_.stub();
  line_.renew_unless_answered(grpc::Status::OK);
  line_.renew_unless_answered({grpc::StatusCode::FAILED_PRECONDITION, "an answer"});
  EXPECT_EQ(line_.stub(), before);
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DEADLINE_EXCEEDED}) {
    line_.renew_unless_answered({code, ""});
    EXPECT_NE(line_.stub(), before);
    before = line_.stub();
  }
}

}  // namespace
}  // namespace telar
