#include "client/commands/report.h"

#include <gtest/gtest.h>

#include <sstream>

#include "client/commands/exit_codes.h"
#include "common/errors.h"

namespace telar::client {
namespace {

struct ReportTest : testing::Test {
  std::istringstream in;
  std::ostringstream out, err;
  RealClock clock;
  Interrupt interrupt;
  Context context{{}, {in, out, err}, clock, interrupt, nullptr};
};

TEST_F(ReportTest, EveryViolationHasItsLine) {
  EXPECT_EQ(report(context, invalid({{"spec.model.heads", "7 does not divide 64"}, {"request_id", "is not a UUID"}})),
            kUsage);
  EXPECT_EQ(err.str(), "error: model.heads: 7 does not divide 64\nerror: request_id: is not a UUID\n");
}

TEST_F(ReportTest, AViolationInAGroupPointsAtTheGroup) {
  SpecReading reading;
  reading.places["data"] = {2, 1};
  reading.places["data.train[1]"] = {4, 5};
  report_spec(context, invalid({{"spec.data.eval", "a"}, {"spec.data.train[1]", "b"}, {"spec.seed", "c"}}), "j.yaml",
              reading);
  EXPECT_EQ(err.str(),
            "error: j.yaml:2:1: data.eval: a\nerror: j.yaml:4:5: data.train[1]: b\nerror: j.yaml: seed: c\n");
}

TEST_F(ReportTest, MessagesStayOneLineAndCannotDriveATerminal) {
  report(context, absl::InternalError("two\nlines \x1b[2J"));
  EXPECT_EQ(err.str(), "error: two lines  [2J\n");
  err.str("");
  report(context, absl::InternalError(""));
  EXPECT_EQ(err.str(), "error: INTERNAL\n");
}

TEST(ExitCodeTest, OfEveryStatus) {
  EXPECT_EQ(exit_code(absl::OkStatus()), kOk);
  EXPECT_EQ(exit_code(absl::InvalidArgumentError("")), kUsage);
  EXPECT_EQ(exit_code(absl::NotFoundError("")), kNotFound);
  EXPECT_EQ(exit_code(absl::UnavailableError("")), kUnreachable);
  EXPECT_EQ(exit_code(absl::DeadlineExceededError("")), kUnreachable);
  EXPECT_EQ(exit_code(absl::FailedPreconditionError("")), kRefused);
  EXPECT_EQ(exit_code(absl::InternalError("")), kRefused);
}

TEST(ExitCodeTest, OfEveryEnd) {
  EXPECT_EQ(exit_code(v1::Job::SUCCEEDED), 0);
  EXPECT_EQ(exit_code(v1::Job::FAILED), 1);
  EXPECT_EQ(exit_code(v1::Job::CANCELLED), 3);
}

}  // namespace
}  // namespace telar::client
