#include "common/errors.h"

#include <gtest/gtest.h>

namespace telar {
namespace {

TEST(Errors, ViolationsSurviveTheWire) {
  const absl::Status sent = invalid({{"spec.batch.global", "10 is odd"}, {"spec.name", "is empty"}});
  const absl::Status received = from_grpc(to_grpc(sent));
  EXPECT_EQ(received.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(violations(received).size(), 2u);
  EXPECT_EQ(violations(received)[1].field, "spec.name");
  EXPECT_EQ(violations(received)[1].description, "is empty");
  EXPECT_EQ(reason(received), "INVALID_SPEC");
  EXPECT_EQ(received.message(), "spec.batch.global: 10 is odd; spec.name: is empty");
}

TEST(Errors, ReasonsSurviveTheWire) {
  const absl::Status received =
      from_grpc(to_grpc(error(absl::StatusCode::kFailedPrecondition, "STALE_EPOCH", "epoch 1 is over")));
  EXPECT_EQ(received.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reason(received), "STALE_EPOCH");
  EXPECT_TRUE(violations(received).empty());
}

// What a rule quotes may be cut in the midst of a character, and a path may be no UTF-8 at all.
TEST(Errors, TextThatIsNotUtf8SurvivesTheWire) {
  const absl::Status bad = from_grpc(to_grpc(invalid({{"spec.name", "a\xe2\x86 is no name"}, {"spec.b\xff", "2"}})));
  EXPECT_EQ(bad.message(), "spec.name: a?? is no name; spec.b?: 2");
  ASSERT_EQ(violations(bad).size(), 2u);
  EXPECT_EQ(violations(bad)[0].description, "a?? is no name");
  EXPECT_EQ(violations(bad)[1].field, "spec.b?");
  const absl::Status away =
      from_grpc(to_grpc(error(absl::StatusCode::kNotFound, "NO_FILE", "no /caf\xe9", {{"path", "/caf\xe9"}})));
  EXPECT_EQ(away.message(), "no /caf?");
  EXPECT_EQ(reason(away), "NO_FILE");
  EXPECT_EQ(metadata(away).at("path"), "/caf?");
  const std::string bytes(3000, '\xe2');
  EXPECT_EQ(from_grpc(to_grpc(absl::InternalError(bytes))).message(), std::string(1024, '?'));
}

TEST(Errors, StayBelowTheLimitOfTrailers) {
  std::vector<Violation> many;
  for (int i = 0; i < 500; ++i) many.push_back({"spec.data.train[" + std::to_string(i) + "]", std::string(80, 'x')});
  const grpc::Status status = to_grpc(invalid(many));
  // Both travel in the trailers; gRPC refuses more than 8 KiB of them.
  EXPECT_LT(status.error_message().size() + status.error_details().size() * 4 / 3, 8u << 10);
  EXPECT_FALSE(violations(from_grpc(status)).empty());
}

TEST(Errors, PlainStatusesPass) {
  EXPECT_TRUE(to_grpc(absl::OkStatus()).ok());
  const absl::Status received = from_grpc(to_grpc(absl::NotFoundError("gone")));
  EXPECT_EQ(received.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(received.message(), "gone");
  EXPECT_EQ(reason(received), "");
}

}  // namespace
}  // namespace telar
