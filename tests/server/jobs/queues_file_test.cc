#include "server/jobs/queues_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/server/scratch.h"

namespace telar::server::jobs {
namespace {

TEST(QueuesFile, ReadsEveryFieldAndAddsTheDefault) {
  const auto queues = parse_queues("q.yaml", R"(
queues:
  - {name: research, weight: 2.5}
  - name: urgent
    priority: 10
    preempt: true
    quota_devices: 16
)");
  ASSERT_TRUE(queues.ok()) << queues.status();
  ASSERT_EQ(queues->size(), 3u);
  EXPECT_EQ((*queues)[0].weight, 2.5);
  EXPECT_EQ((*queues)[0].quota_devices, 0u);
  EXPECT_FALSE((*queues)[0].preempt);
  EXPECT_EQ((*queues)[1].priority, 10);
  EXPECT_TRUE((*queues)[1].preempt);
  EXPECT_EQ((*queues)[1].quota_devices, 16u);
  EXPECT_EQ((*queues)[1].weight, 1);
  EXPECT_EQ((*queues)[2].name, kDefaultQueue);
  const auto own = parse_queues("q.yaml", "queues: [{name: default, weight: 3}]");
  ASSERT_EQ(own->size(), 1u);
  EXPECT_EQ((*own)[0].weight, 3);
}

TEST(QueuesFile, NamesEveryMistakeWithItsPlace) {
  const absl::Status status = parse_queues("q.yaml", R"(queues:
  - {name: a, weight: 0}
  - {name: a, priority: 2000}
  - {name: Big, wieght: 2}
  - {weight: -1, quota_devices: many}
)")
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string text(status.message());
  for (const char* part :
       {"q.yaml:2:", "queues[0].weight: 0 is not within (0, 1e6]", "q.yaml:3:", "queues[1].name: 'a' is",
        "queues[1].priority: 2000", "q.yaml:4:", "queues[2].name: 'Big'", "did you mean 'weight'",
        "queues[3].weight: -1", "queues[3].quota_devices", "queues[3].name: ''"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(QueuesFile, SaysWhichFileCannotBeRead) {
  tests::Scratch scratch;
  const std::string missing = scratch.path("none.yaml");
  EXPECT_NE(read_queues(missing).status().message().find(missing), std::string::npos);
  std::ofstream(scratch.path("q.yaml")) << "queues: [{name: x}]\n";
  EXPECT_EQ(read_queues(scratch.path("q.yaml"))->size(), 2u);
}

}  // namespace
}  // namespace telar::server::jobs
