#include "worker/agent/devices.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

namespace telar::agent {
namespace {

using std::chrono::milliseconds;
using Found = absl::StatusOr<std::vector<v1::Device>>;

TEST(Devices, ADriverThatDoesNotAnswerIsReplacedByWhatItSaidLast) {
  std::string root = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::string memory = root + "/devices";
  const auto silent = []() -> Found {
    for (;;) pause();
  };
  const auto answers = [] { return find_devices(DeviceKind::kCpu, 3, 2); };
  EXPECT_TRUE(absl::IsDeadlineExceeded(find_devices_within(milliseconds(100), memory, silent).status()));
  const Found first = find_devices_within(milliseconds(10'000), memory, answers);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->size(), 3u);
  EXPECT_EQ((*first)[2].nvlink_domain(), 1u);
  const Found again = find_devices_within(milliseconds(100), memory, silent);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->size(), 3u);
  EXPECT_EQ((*again)[2].SerializeAsString(), (*first)[2].SerializeAsString());
  // What it refuses it refuses, whatever was there before.
  const Found refused = find_devices_within(milliseconds(10'000), memory,
                                            []() -> Found { return absl::FailedPreconditionError("no GPU here"); });
  EXPECT_EQ(refused.status(), absl::FailedPreconditionError("no GPU here"));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace telar::agent
