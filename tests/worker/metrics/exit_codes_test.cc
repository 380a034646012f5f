#include "worker/metrics/exit_codes.h"

#include <gtest/gtest.h>

namespace telar::metrics {
namespace {

TEST(ExitCodes, EveryClassOfARankSurvivesTheRoundTrip) {
  for (v1::FailureClass failure :
       {v1::CONFIG, v1::DATA, v1::OUT_OF_MEMORY, v1::NUMERIC, v1::COMMUNICATION, v1::STORAGE, v1::INTERNAL}) {
    EXPECT_EQ(failure_class(exit_code(failure)), failure) << v1::FailureClass_Name(failure);
  }
  EXPECT_EQ(exit_code(v1::CONFIG), 21);
  EXPECT_EQ(exit_code(v1::STORAGE), 26);
  EXPECT_EQ(exit_code(v1::INTERNAL), 29);
}

TEST(ExitCodes, WhatARankCannotSayOfItself) {
  EXPECT_EQ(exit_code(v1::CRASH), 29);
  EXPECT_EQ(exit_code(v1::NODE_LOST), 29);
  EXPECT_EQ(exit_code(v1::FAILURE_CLASS_UNSPECIFIED), 29);
}

TEST(ExitCodes, OneCodeSaysThatARetryWouldFailAgain) {
  EXPECT_EQ(kExitNoRetry, 11);
  EXPECT_EQ(failure_class(11), v1::CONFIG);  // Which is not retried.
}

TEST(ExitCodes, GoodEndsAreNoFailureAndUnknownCodesAreCrashes) {
  EXPECT_EQ(failure_class(0), v1::FAILURE_CLASS_UNSPECIFIED);
  EXPECT_EQ(failure_class(10), v1::FAILURE_CLASS_UNSPECIFIED);
  for (int code : {1, 3, 20, 27, 28, 30, 127, 134, 137, 139}) EXPECT_EQ(failure_class(code), v1::CRASH) << code;
}

}  // namespace
}  // namespace telar::metrics
