#include "server/cluster/device_policy.h"

#include <gtest/gtest.h>

namespace telar::server::cluster {
namespace {

using Cause = FaultRule::Cause;

TEST(DevicePolicy, TellsTheApplicationFromTheDevice) {
  for (const char* code : {"xid-13", "xid-31", "xid-43", "xid-45", "xid-69"}) {
    EXPECT_EQ(rule_of(code).cause, Cause::kApplication) << code;
  }
  for (const char* code : {"xid-48", "xid-64", "xid-74", "xid-79", "xid-95", "xid-109", "xid-119", "xid-120", "xid-140",
                           "ecc-uncorrected", "nvlink-3-down", "gpu-lost", "remap-failed", "remap-pending"}) {
    EXPECT_EQ(rule_of(code).cause, Cause::kDevice) << code;
  }
  for (const char* code : {"xid-63", "xid-92", "xid-154"}) EXPECT_EQ(rule_of(code).cause, Cause::kNotice) << code;
  EXPECT_EQ(rule_of("xid-94").cause, Cause::kContained);
}

TEST(DevicePolicy, AnXidThatNobodyKnowsIsTheDevices) {
  EXPECT_EQ(rule_of("xid-9999").cause, Cause::kDevice);
  EXPECT_EQ(rule_of("xid-").cause, Cause::kNotice);
  EXPECT_EQ(rule_of("noise").cause, Cause::kNotice);
}

TEST(DevicePolicy, OnlyWhatAResetEndsComesBackByItself) {
  EXPECT_EQ(rule_of("remap-pending").release, FaultRule::Release::kCondition);
  for (const char* code : {"xid-79", "xid-48", "ecc-uncorrected", "nvlink-0-down"}) {
    EXPECT_EQ(rule_of(code).release, FaultRule::Release::kOperator) << code;
    EXPECT_NE(std::string(rule_of(code).meaning), "") << code;
  }
}

}  // namespace
}  // namespace telar::server::cluster
