#include "server/auth/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "telar/v1/jobs.pb.h"
#include "tests/fakes/fake_clock.h"

namespace telar::server::auth {
namespace {

using testing::HasSubstr;

TEST(RateLimit, FillsUpAgain) {
  fakes::FakeClock clock;
  RateLimit limit(10, 3, &clock);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.take("ann").ok());
  const absl::Status refused = limit.take("ann");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reason(refused), "RATE_LIMIT");
  EXPECT_EQ(retry_delay(from_grpc(to_grpc(refused))), std::chrono::milliseconds(100));
  EXPECT_TRUE(limit.take("bob").ok());  // A bucket each.
  clock.advance(std::chrono::milliseconds(99));
  EXPECT_FALSE(limit.take("ann").ok());
  clock.advance(std::chrono::milliseconds(1));
  EXPECT_TRUE(limit.take("ann").ok());
  clock.advance(std::chrono::hours(1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.take("ann").ok());
  EXPECT_FALSE(limit.take("ann").ok());  // No more than a burst is saved up.
}

TEST(StreamLimit, CountsOpenOnes) {
  StreamLimit limit(2);
  EXPECT_TRUE(limit.open("ann").ok());
  EXPECT_TRUE(limit.open("ann").ok());
  EXPECT_EQ(reason(limit.open("ann")), "STREAM_LIMIT");
  EXPECT_TRUE(limit.open("bob").ok());
  limit.close("ann");
  EXPECT_TRUE(limit.open("ann").ok());
}

TEST(Oversize, AllOfItAtOnceByPath) {
  v1::CreateJobRequest request;
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name("fine");
  spec.mutable_sample()->set_prompt(std::string(60'000, 'p'));
  EXPECT_TRUE(find_oversize(request).empty());
  spec.mutable_data()->add_train("/ok");
  spec.mutable_data()->add_train(std::string(5'000, 'x'));
  spec.mutable_tokenizer()->set_path(std::string("/a\0b", 4));
  for (int i = 0; i < 5'000; ++i) spec.mutable_trace()->add_steps(1);
  (*spec.mutable_scheduling()->mutable_node_labels())["k"] = std::string(5'000, 'v');
  std::string all;
  for (const Violation& one : find_oversize(request)) all += one.field + ": " + one.description + "\n";
  EXPECT_THAT(all, HasSubstr("spec.data.train[1]: 5000 bytes; at most 4096\n"));
  EXPECT_THAT(all, HasSubstr("spec.tokenizer.path: must not have a NUL"));
  EXPECT_THAT(all, HasSubstr("spec.trace.steps: 5000 entries; at most 4096\n"));
  EXPECT_THAT(all, HasSubstr("spec.scheduling.node_labels[0].value: 5000 bytes"));
}

}  // namespace
}  // namespace telar::server::auth
