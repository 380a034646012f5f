#include "worker/plan/resolve_parallel.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

namespace telar::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 8 layers of 6 query and 2 key-value heads on `devices` ranks; `parallel` in textproto.
v1::JobSpec llama(uint32_t devices, const std::string& parallel) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    name: "small" model { architecture: LLAMA layers: 8 hidden: 96 heads: 6 kv_heads: 2 ffn: 130 vocab: 1031 }
    data { train: "/data/a.txt" } batch { global: 48 micro: 1 sequence_length: 96 } schedule { steps: 10 })",
                                                            &spec));
  spec.mutable_resources()->set_devices(devices);
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(parallel, spec.mutable_parallel())) << parallel;
  return spec;
}

// "field: description" of every problem. Also that a spec without one is complete: resolving it again changes nothing.
std::vector<std::string> problems(v1::JobSpec spec) {
  std::vector<std::string> found;
  for (const SpecProblem& problem : resolve(spec, v1::ResourceSpec::CPU)) {
    found.push_back(problem.field.substr(5) + ": " + problem.description);
  }
  if (found.empty()) {
    v1::JobSpec again = spec;
    EXPECT_THAT(resolve(again, v1::ResourceSpec::CPU), IsEmpty());
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(spec, again)) << spec.parallel().DebugString();
  }
  return found;
}

std::vector<std::string> problems(uint32_t devices, const std::string& parallel) {
  return problems(llama(devices, parallel));
}

v1::ParallelSpec resolved(uint32_t devices, const std::string& parallel) {
  v1::JobSpec spec = llama(devices, parallel);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::CPU), IsEmpty()) << parallel;
  return spec.parallel();
}

TEST(ResolveParallel, OneRankHasTheDefaults) {
  const v1::ParallelSpec parallel = resolved(1, "");
  EXPECT_EQ(parallel.ShortDebugString(),
            "data: 1 tensor: 1 pipeline: 1 bucket_mib: 25 schedule: \"1f1b\" virtual_stages: 1 reduce: FP32");
}

TEST(ResolveParallel, FillsInWhatFollowsFromTheRest) {
  const v1::ParallelSpec parallel = resolved(12, "tensor: 2 pipeline: 2 zero_stage: 3");
  EXPECT_EQ(parallel.data(), 3u);
  EXPECT_EQ(parallel.shard(), 3u);
  EXPECT_EQ(parallel.prefetch(), 1u);
  EXPECT_TRUE(parallel.overlap_tensor());
  EXPECT_FALSE(resolved(2, "").has_overlap_tensor());
  EXPECT_FALSE(resolved(2, "zero_stage: 2").has_prefetch());
  EXPECT_EQ(resolved(2, "zero_stage: 3 prefetch: 0").prefetch(), 0u);
  EXPECT_EQ(resolved(2, "tensor: 2 overlap_tensor: false").overlap_tensor(), false);
}

TEST(ResolveParallel, TheScheduleAndItsStagesFollowFromEachOther) {
  EXPECT_EQ(resolved(4, "pipeline: 4").schedule(), "1f1b");
  EXPECT_EQ(resolved(4, "pipeline: 4 virtual_stages: 2").schedule(), "interleaved");
  EXPECT_EQ(resolved(4, "pipeline: 4 schedule: 'interleaved'").virtual_stages(), 2u);
  EXPECT_EQ(resolved(2, "pipeline: 2 schedule: 'interleaved' virtual_stages: 4").virtual_stages(), 4u);
  EXPECT_EQ(resolved(4, "pipeline: 4 schedule: 'zb-v'").virtual_stages(), 2u);
  EXPECT_EQ(resolved(1, "schedule: 'gpipe'").virtual_stages(), 1u);
  v1::JobSpec custom = llama(2, "pipeline: 2 schedule: 'custom' schedule_text: '0F0,0B0\\n1F0,1B0'");
  custom.mutable_batch()->set_micro(48);
  EXPECT_THAT(resolve(custom, v1::ResourceSpec::CPU), IsEmpty());
  EXPECT_EQ(custom.parallel().virtual_stages(), 1u);
}

TEST(ResolveParallel, SaysHowTheRanksAreMade) {
  EXPECT_THAT(problems(4, "data: 3 tensor: 2"),
              ElementsAre("resources.devices: 4 is not parallel.data * tensor * pipeline = 3 * 2 * 1 = 6"));
  EXPECT_THAT(problems(9, "tensor: 2 pipeline: 2"),
              ElementsAre("resources.devices: 9 is not divisible by parallel.tensor * pipeline = 2 * 2 = 4, so no "
                          "parallel.data fits; use 8 or 12"));
  EXPECT_THAT(problems(1, "tensor: 2"),
              ElementsAre("resources.devices: 1 is not divisible by parallel.tensor * pipeline = 2 * 1 = 2, so no "
                          "parallel.data fits; use 2"));
}

TEST(ResolveParallel, RefusesMoreRanksThanAJobMayHave) {
  v1::JobSpec spec = llama(65536, "");
  spec.mutable_batch()->set_global(65536);
  EXPECT_THAT(problems(spec), IsEmpty());
  spec.mutable_resources()->set_devices(65537);
  spec.mutable_parallel()->clear_data();
  EXPECT_THAT(problems(spec), ElementsAre("resources.devices: 65537 is more than the 65536 ranks that a job may have"));
  EXPECT_THAT(problems(2, "data: 4294967295 pipeline: 4294967295"),
              ElementsAre("parallel.data: 4294967295 is more than the 65536 ranks that a job may have",
                          "parallel.pipeline: 4294967295 is more than the 65536 ranks that a job may have",
                          "parallel.pipeline: pipeline * virtual_stages = 4294967295 * 1 = 4294967295 stages, but "
                          "model.layers = 8 and each stage needs one; use at most parallel.pipeline 8",
                          "batch.global: 48 is not divisible by parallel.data = 4294967295"));
}

TEST(ResolveParallel, TensorParallelSplitsHeads) {
  EXPECT_THAT(problems(2, "tensor: 2"), IsEmpty());
  EXPECT_THAT(problems(6, "tensor: 6"), IsEmpty());  // Three ranks share a key-value head.
  EXPECT_THAT(problems(4, "tensor: 4"),
              ElementsAre("parallel.tensor: 4 does not divide model.heads = 6: 6 % 4 = 2; use 2"));
  EXPECT_THAT(problems(3, "tensor: 3"),
              ElementsAre("parallel.tensor: 3 neither divides model.kv_heads = 2 nor is a multiple of it; use 2"));
}

TEST(ResolveParallel, TensorParallelSplitsTokensButNeedsNothingElseToDivide) {
  v1::JobSpec spec = llama(2, "tensor: 2");
  spec.mutable_model()->set_vocab(1033);
  spec.mutable_model()->set_ffn(131);
  EXPECT_THAT(problems(spec), IsEmpty());
  spec.mutable_batch()->set_sequence_length(97);
  EXPECT_THAT(problems(spec),
              ElementsAre("batch.sequence_length: 97 is not divisible by parallel.tensor = 2: 97 % 2 = 1; use 96"));
  spec.mutable_batch()->set_sequence_length(1);
  EXPECT_THAT(problems(spec),
              ElementsAre("batch.sequence_length: 1 is not divisible by parallel.tensor = 2: 1 % 2 = 1; use 2"));
  spec = llama(6, "tensor: 6");
  spec.mutable_model()->set_ffn(5);
  EXPECT_THAT(problems(spec), ElementsAre("parallel.tensor: 6 ranks cannot share model.ffn = 5; use 2"));
}

TEST(ResolveParallel, EachStageNeedsALayer) {
  EXPECT_THAT(problems(8, "pipeline: 8"), IsEmpty());
  EXPECT_THAT(problems(4, "pipeline: 4 virtual_stages: 3"),
              ElementsAre("parallel.pipeline: pipeline * virtual_stages = 4 * 3 = 12 stages, but model.layers = 8 and "
                          "each stage needs one; use at most parallel.pipeline 2"));
  EXPECT_THAT(problems(2, "pipeline: 2 virtual_stages: 9"),
              ElementsAre("parallel.pipeline: pipeline * virtual_stages = 2 * 9 = 18 stages, but model.layers = 8 and "
                          "each stage needs one; use at most parallel.virtual_stages 8"));
}

TEST(ResolveParallel, StageLayersAreALayerCountForEachStage) {
  EXPECT_THAT(problems(2, "pipeline: 2 stage_layers: [5, 3]"), IsEmpty());
  EXPECT_THAT(problems(2, "pipeline: 2 schedule: 'zb-v' stage_layers: [2, 2, 2, 2]"), IsEmpty());
  EXPECT_THAT(problems(2, "pipeline: 2 stage_layers: [5, 0, 2]"),
              ElementsAre("parallel.stage_layers: 3 entries, but pipeline * virtual_stages = 2 * 1 = 2 stages",
                          "parallel.stage_layers[1]: 0; each stage needs at least one layer",
                          "parallel.stage_layers: 5 + 0 + 2 = 7 is not model.layers = 8"));
}

TEST(ResolveParallel, KnowsTheSchedules) {
  EXPECT_THAT(problems(2, "pipeline: 2 schedule: 'zbh1'"),
              ElementsAre("parallel.schedule: 'zbh1' is not known; did you mean 'zb-h1'?"));
  EXPECT_THAT(problems(2, "pipeline: 2 schedule: '1F1B'"),
              ElementsAre("parallel.schedule: '1F1B' is not known; did you mean '1f1b'?"));
  EXPECT_THAT(
      problems(2, "pipeline: 2 schedule: 'zb-h1' virtual_stages: 2"),
      ElementsAre("parallel.virtual_stages: 2 does not go with parallel.schedule zb-h1, where each rank holds 1; "
                  "use 1, or schedule interleaved"));
  EXPECT_THAT(problems(2, "pipeline: 2 schedule: 'interleaved' virtual_stages: 1"),
              ElementsAre("parallel.virtual_stages: 1 does not go with parallel.schedule interleaved, where each rank "
                          "holds 2 or more"));
  EXPECT_THAT(
      problems(2, "pipeline: 2 schedule: 'zb-v' virtual_stages: 3"),
      ElementsAre("parallel.virtual_stages: 3 does not go with parallel.schedule zb-v, where each rank holds 2"));
  EXPECT_THAT(
      problems(1, "schedule: 'zb-v'"),
      ElementsAre("parallel.virtual_stages: 2 stages a rank (schedule zb-v) need parallel.pipeline above 1: one "
                  "rank has nothing to wait for"));
}

TEST(ResolveParallel, OnlyACustomScheduleHasText) {
  EXPECT_THAT(
      problems(2, "pipeline: 2 schedule: 'custom'"),
      ElementsAre("parallel.schedule_text: not given; parallel.schedule custom needs a line for each of 2 ranks"));
  EXPECT_THAT(problems(2, "pipeline: 2 schedule_text: '0F0,0B0'"),
              ElementsAre("parallel.schedule_text: goes with parallel.schedule custom only, not with 1f1b"));
}

TEST(ResolveParallel, ShardsDivideTheReplicas) {
  EXPECT_THAT(problems(8, "zero_stage: 1 shard: 4"), IsEmpty());
  EXPECT_THAT(problems(6, "zero_stage: 2 shard: 4"),
              ElementsAre("parallel.shard: 4 does not divide parallel.data = 6; use 3"));
  EXPECT_THAT(problems(2, "zero_stage: 1 shard: 4"),
              ElementsAre("parallel.shard: 4 does not divide parallel.data = 2; use 2"));
  EXPECT_THAT(problems(2, "shard: 2"),
              ElementsAre("parallel.shard: 2 needs parallel.zero_stage 1, 2 or 3: at 0 nothing is split"));
}

TEST(ResolveParallel, PrefetchGoesWithZero3) {
  EXPECT_THAT(problems(2, "zero_stage: 3 prefetch: 8"), IsEmpty());
  EXPECT_THAT(problems(2, "zero_stage: 3 prefetch: 9"),
              ElementsAre("parallel.prefetch: 9 buckets ahead are more than 8"));
  EXPECT_THAT(problems(2, "zero_stage: 2 prefetch: 1"),
              ElementsAre("parallel.prefetch: 1 needs parallel.zero_stage 3: at 2 no weights are gathered"));
}

TEST(ResolveParallel, ReducesInFp32OrBf16) {
  EXPECT_THAT(problems(1, "reduce: BF16"), IsEmpty());  // One replica has nothing to reduce.
  EXPECT_THAT(problems(2, "reduce: FP16"), ElementsAre("parallel.reduce: fp16 is not possible; use fp32 or bf16"));
}

TEST(ResolveParallel, ReportsEverythingAtOnce) {
  EXPECT_THAT(
      problems(8, "tensor: 4 pipeline: 2 zero_stage: 4 schedule: 'gpip' reduce: FP16"),
      ElementsAre("parallel.tensor: 4 does not divide model.heads = 6: 6 % 4 = 2; use 2",
                  "parallel.zero_stage: 4 is not known; use 0, 1 (optimizer state), 2 (and gradients) or 3 (and "
                  "weights)",
                  "parallel.schedule: 'gpip' is not known; did you mean 'gpipe'?",
                  "parallel.reduce: fp16 is not possible; use fp32 or bf16"));
}

TEST(ResolveParallel, ActivationsMayBeOffloadedInAnyLayout) {
  v1::JobSpec spec = llama(8, "tensor: 2 pipeline: 2 zero_stage: 3");
  spec.mutable_memory()->set_offload_activations(true);
  spec.mutable_memory()->set_recompute(v1::MemorySpec::FULL);
  EXPECT_THAT(problems(spec), IsEmpty());
}

// 48 sequences of micro-batch 1 on one replica would be 48 micro-batches: made 2 here.
std::vector<std::string> custom(const std::string& text) {
  v1::JobSpec spec = llama(2, "pipeline: 2 schedule: 'custom' schedule_text: '" + text + "'");
  spec.mutable_batch()->set_micro(24);
  return problems(spec);
}

TEST(ResolveParallel, RunsCustomSchedulesThroughTheValidator) {
  EXPECT_THAT(custom("0F0,0F1,0B0,0B1\\n1F0,1B0,1F1,1B1"), IsEmpty());
  EXPECT_THAT(custom("0F0,0X1"), ElementsAre(::testing::HasSubstr("parallel.schedule_text: ")));
  EXPECT_THAT(
      custom("0F0,0B0\\n1F0,1B0"),
      ElementsAre("parallel.schedule_text: has 1 micro-batches, but batch.global / parallel.data / batch.micro = "
                  "48 / 1 / 24 = 2"));
  EXPECT_THAT(custom("0F0,0F1,0B0,0B1\\n1F0,1B0,1F1"), ElementsAre(::testing::HasSubstr("1B1")));
  EXPECT_THAT(custom("0F0,0F1,0B0,0B1"),
              ::testing::Contains("parallel.schedule_text: has 1 lines, but parallel.pipeline = 2"));
}

TEST(ResolveParallel, AutoIsNotDecidedHere) {
  EXPECT_THAT(problems(4, "auto: true"),
              ElementsAre("parallel.auto: is decided when a job is submitted by itself; `telar plan` prints layouts to "
                          "choose from, of which one can be written here"));
}

}  // namespace
}  // namespace telar::plan
