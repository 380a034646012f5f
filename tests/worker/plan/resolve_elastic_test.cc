#include "worker/plan/resolve_elastic.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

namespace telar::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 48 sequences a step.
v1::JobSpec spec_of(uint32_t devices, uint32_t micro, const std::string& parallel) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    name: "small" model { architecture: LLAMA layers: 8 hidden: 96 heads: 6 kv_heads: 2 ffn: 130 vocab: 1031 }
    data { train: "/data/a.txt" } batch { global: 48 sequence_length: 96 } schedule { steps: 10 })",
                                                            &spec));
  spec.mutable_batch()->set_micro(micro);
  spec.mutable_resources()->set_devices(devices);
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(parallel, spec.mutable_parallel())) << parallel;
  return spec;
}

std::vector<std::string> elastic_problems(v1::JobSpec spec) {
  std::vector<std::string> found;
  for (const SpecProblem& problem : resolve(spec, v1::ResourceSpec::CPU)) {
    found.push_back(problem.field.substr(5) + ": " + problem.description);
  }
  return found;
}

std::vector<uint32_t> counts(uint32_t devices, uint32_t micro, const std::string& parallel) {
  v1::JobSpec spec = spec_of(devices, micro, parallel);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  return replica_counts(spec);
}

TEST(Elastic, RunsWithEveryNumberThatSharesTheBatchInWholeMicroBatches) {
  EXPECT_THAT(counts(8, 1, ""), ElementsAre(8));
  EXPECT_THAT(counts(8, 1, "elastic {}"), ElementsAre(8, 6, 4, 3, 2, 1));
  EXPECT_THAT(counts(8, 0, "elastic {}"), ElementsAre(8, 4, 2, 1));  // micro is 48 / 8 = 6.
  EXPECT_THAT(counts(8, 1, "elastic { min_data: 3 max_data: 16 }"), ElementsAre(16, 12, 8, 6, 4, 3));
  EXPECT_THAT(counts(8, 1, "tensor: 2 elastic { min_data: 2 }"), ElementsAre(4, 3, 2));
}

TEST(Elastic, ShardGroupsStayWhole) {
  EXPECT_THAT(counts(8, 1, "zero_stage: 2 elastic {}"), ElementsAre(8, 6, 4, 3, 2, 1));  // Of all replicas.
  EXPECT_THAT(counts(8, 1, "zero_stage: 2 shard: 4 elastic {}"), ElementsAre(8, 4, 3, 2, 1));
}

TEST(Elastic, AShapeDiffersInItsReplicasOnly) {
  v1::JobSpec spec = spec_of(8, 2, "tensor: 2 zero_stage: 1 elastic {}");
  ASSERT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty());
  v1::JobSpec shape = with_replicas(spec, 2);
  EXPECT_EQ(shape.parallel().data(), 2u);
  EXPECT_EQ(shape.parallel().shard(), 2u);
  EXPECT_EQ(shape.resources().devices(), 4u);
  EXPECT_EQ(shape.batch().global(), 48u);
  EXPECT_EQ(shape.batch().micro(), 2u);
  // It is a spec of its own right, and complete.
  v1::JobSpec again = shape;
  EXPECT_THAT(resolve(again, v1::ResourceSpec::CPU), IsEmpty());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(shape, again));
  shape.mutable_parallel()->set_data(4);
  shape.mutable_parallel()->set_shard(4);
  shape.mutable_resources()->set_devices(8);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(shape, spec));
}

TEST(Elastic, SaysWhatIsWrongAndWhatWouldDo) {
  EXPECT_THAT(elastic_problems(spec_of(4, 1, "elastic { min_data: 5 }")),
              ElementsAre("parallel.elastic.min_data: 5 is more than parallel.data = 4"));
  EXPECT_THAT(elastic_problems(spec_of(4, 1, "elastic { max_data: 3 }")),
              ElementsAre("parallel.elastic.max_data: 3 is less than parallel.data = 4"));
  EXPECT_THAT(elastic_problems(spec_of(8, 0, "elastic { min_data: 3 max_data: 9 }")),
              ElementsAre("parallel.elastic.min_data: 3 replicas do not share batch.global = 48 in micro-batches of "
                          "batch.micro = 6; use 2",
                          "parallel.elastic.max_data: 9 replicas do not share batch.global = 48 in micro-batches of "
                          "batch.micro = 6; use 8"));
}

}  // namespace
}  // namespace telar::plan
