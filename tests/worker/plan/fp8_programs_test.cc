// What the programs of an FP8 job do how often.
#include <gmock/gmock.h>

#include <algorithm>

#include "worker/engine/plan.h"
#include "worker/plan/programs.h"
#include "worker/plan/resolve.h"

namespace telar::plan {
namespace {

using backend::Kernels;
using engine::KernelId;
using engine::Op;
using engine::Program;

constexpr int kDepth = 4, kProducts = 4, kRounds = 3;  // Layers, products of one, micro-batches.

v1::JobSpec fp8_job(uint32_t replicas = 1, uint32_t zero_stage = 0) {
  v1::JobSpec spec;
  spec.set_name("x");
  spec.mutable_model()->set_preset("gpt2-124m");
  spec.mutable_model()->set_layers(kDepth);
  spec.mutable_data()->add_train("/x");
  spec.mutable_batch()->set_global(kRounds * replicas);
  spec.mutable_batch()->set_micro(1);
  spec.mutable_batch()->set_sequence_length(1024);
  spec.mutable_schedule()->set_steps(1);
  spec.mutable_resources()->set_devices(replicas);
  spec.mutable_parallel()->set_zero_stage(zero_stage);
  spec.mutable_precision()->set_compute(v1::FP8);
  return spec;
}

RunShape fp8_shape(v1::JobSpec spec) {
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::GPU), ::testing::IsEmpty());
  return run_shape(spec, parallel::Mesh::of_rank(0, static_cast<int>(spec.parallel().data()), 1,
                                                 static_cast<int>(spec.parallel().tensor())));
}

template <typename Method>
std::vector<const Op*> ops_calling(const Program& program, Method method, const std::string& part = "") {
  std::vector<const Op*> found;
  for (const Op& op : program.ops()) {
    if (op.kernel == KernelId(method) && op.name.find(part) != std::string::npos) found.push_back(&op);
  }
  return found;
}

uint64_t fp8_activation_bytes(const RunShape& run) {
  const auto plan = engine::plan(record_train(run)->program);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan->arena_bytes[static_cast<size_t>(engine::MemoryClass::kActivations)];
}

TEST(Fp8Programs, EachWeightIsQuantisedOnceAStepAndAllElseOnceAMicroBatch) {
  const auto train = record_train(fp8_shape(fp8_job()));
  ASSERT_TRUE(engine::plan(train->program).ok());
  EXPECT_EQ(ops_calling(train->program, &Kernels::quantize, ".weight.quantize").size(), kDepth * kProducts);
  EXPECT_EQ(ops_calling(train->program, &Kernels::quantize, ".x.quantize").size(), kRounds * kDepth * kProducts);
  EXPECT_EQ(ops_calling(train->program, &Kernels::quantize, ".dy.quantize").size(), kRounds * kDepth * kProducts);
  EXPECT_EQ(ops_calling(train->program, &Kernels::fp8_product).size(), 2 * kRounds * kDepth * kProducts);
  EXPECT_EQ(ops_calling(train->program, &Kernels::fp8_wgrad).size(), kRounds * kDepth * kProducts);
  EXPECT_TRUE(ops_calling(train->program, &Kernels::linear, "layers.").empty());
  for (const Op* product : ops_calling(train->program, &Kernels::fp8_product)) {
    EXPECT_EQ(product->switches, product->name.ends_with(".dgrad") ? "0" : "1") << product->name;  // Fast.
  }
}

TEST(Fp8Programs, DelayedScalesNeedNoPassOfTheirOwn) {
  v1::JobSpec spec = fp8_job();
  spec.mutable_precision()->set_recipe(v1::PrecisionSpec::DELAYED);
  const RunShape run = fp8_shape(spec);
  const auto train = record_train(run);
  ASSERT_TRUE(engine::plan(train->program).ok());
  // x, and what is known of it: then nobody reads x.
  for (const Op* op : ops_calling(train->program, &Kernels::amax)) EXPECT_EQ(op->accesses.size(), 3u) << op->name;
  for (const Op* op : ops_calling(train->program, &Kernels::quantize)) {
    const engine::Access& seen = op->accesses.back();
    EXPECT_TRUE(seen.reads() && seen.writes()) << op->name << " sees nothing";
  }
  EXPECT_EQ(ops_calling(train->program, &Kernels::push_history).size(), 1u);
  EXPECT_EQ(train->step_state.elements(), backend::kStepStates + kDepth * kProducts * 3 * 1024);
  const auto eval = record_eval(run);
  EXPECT_EQ(ops_calling(eval->program, &Kernels::history_amax).size(), 1u);
  EXPECT_TRUE(ops_calling(eval->program, &Kernels::push_history).empty());
  for (const Op* op : ops_calling(eval->program, &Kernels::quantize)) EXPECT_EQ(op->accesses.size(), 4u) << op->name;
}

TEST(Fp8Programs, BlocksNeedNoGreatestMagnitudes) {
  v1::JobSpec spec = fp8_job();
  spec.mutable_precision()->set_recipe(v1::PrecisionSpec::BLOCK);
  const auto train = record_train(fp8_shape(spec));
  ASSERT_TRUE(engine::plan(train->program).ok());
  EXPECT_TRUE(ops_calling(train->program, &Kernels::amax).empty());
  EXPECT_EQ(ops_calling(train->program, &Kernels::quantize_blocks, ".weight.quantize").size(), kDepth * kProducts);
  EXPECT_EQ(ops_calling(train->program, &Kernels::quantize_blocks).size(),
            (1 + 2 * kRounds) * size_t{kDepth} * kProducts);
  for (const Op* product : ops_calling(train->program, &Kernels::fp8_product)) {
    EXPECT_EQ(product->switches, "0") << product->name;  // Not fast.
  }
}

TEST(Fp8Programs, WithZeroThreeWeightsAreQuantisedBehindTheirGather) {
  v1::JobSpec spec = fp8_job(2, 3);
  spec.mutable_parallel()->set_bucket_mib(4096);  // Embeddings share the bucket, so it comes in bf16.
  const auto train = record_train(fp8_shape(spec));
  ASSERT_TRUE(engine::plan(train->program).ok());
  // Once a forward and once a backward, each the copy that it reads; less where the pass turns round.
  const auto quantized = ops_calling(train->program, &Kernels::quantize, ".weight.quantize");
  EXPECT_LE(quantized.size(), 2u * kRounds * kDepth * kProducts);
  EXPECT_GE(quantized.size(), 1u * kDepth * kProducts);
  for (const Op* op : quantized) {
    EXPECT_EQ(op->accesses.size(), 4u) << op->name << " makes more than one copy";
  }
}

uint64_t gathered_bytes(const Program& program) {
  uint64_t bytes = 0;
  for (const Op& op : program.ops()) {
    if (op.comm && op.phase == engine::Phase::kWeightComm) bytes += op.comm->bytes();
  }
  return bytes;
}

TEST(Fp8Programs, WithZeroThreeWeightsOfLayersAreGatheredInFp8) {
  for (const auto recipe : {v1::PrecisionSpec::CURRENT, v1::PrecisionSpec::DELAYED}) {
    v1::JobSpec spec = fp8_job(2, 3);
    spec.mutable_parallel()->set_bucket_mib(1);
    spec.mutable_precision()->set_recipe(recipe);
    const auto train = record_train(fp8_shape(spec));
    ASSERT_TRUE(engine::plan(train->program).ok());
    // Shards once a step, whichever parts of weights are in them; transposed copies behind gathers.
    const auto shards = ops_calling(train->program, &Kernels::quantize, ".weight.shard.quantize");
    EXPECT_GT(shards.size(), 0u);
    EXPECT_LE(shards.size(), size_t{kDepth} * kProducts);
    EXPECT_TRUE(ops_calling(train->program, &Kernels::quantize, ".weight.quantize").empty());
    EXPECT_GE(ops_calling(train->program, &Kernels::transpose).size(), size_t{kDepth} * kProducts);
    v1::JobSpec bf16 = spec;
    bf16.mutable_precision()->Clear();
    bf16.mutable_precision()->set_compute(v1::BF16);
    const auto wide = record_train(fp8_shape(bf16));
    EXPECT_LT(gathered_bytes(train->program), 0.8 * gathered_bytes(wide->program));  // The tables are the rest.
  }
}

TEST(Fp8Programs, ForwardsAloneMakeNoTransposedCopies) {
  const RunShape run = fp8_shape(fp8_job());
  for (const Op* op : ops_calling(record_eval(run)->program, &Kernels::quantize)) {
    EXPECT_EQ(op->accesses.size(), 4u) << op->name;
  }
  const auto logits = record_logits(run);
  EXPECT_TRUE(engine::plan(logits->program).ok());
  EXPECT_EQ(ops_calling(logits->program, &Kernels::fp8_product).size(), kDepth * kProducts);
}

TEST(Fp8Programs, LayersThatAreKeptMultiplyInBf16) {
  v1::JobSpec spec = fp8_job();
  spec.mutable_precision()->add_keep_bf16("first");
  spec.mutable_precision()->add_keep_bf16("2");
  const auto train = record_train(fp8_shape(spec));
  for (const std::string layer : {"layers.0.", "layers.2."}) {
    EXPECT_TRUE(ops_calling(train->program, &Kernels::fp8_product, layer).empty());
    EXPECT_EQ(ops_calling(train->program, &Kernels::linear_wgrad, layer).size(), kRounds * kProducts);
  }
  for (const std::string layer : {"layers.1.", "layers.3."}) {
    EXPECT_EQ(ops_calling(train->program, &Kernels::fp8_wgrad, layer).size(), kRounds * kProducts);
    EXPECT_TRUE(ops_calling(train->program, &Kernels::linear_wgrad, layer).empty());
  }
}

TEST(Fp8Programs, TensorRanksGatherBytesBesideTheProduct) {
  v1::JobSpec spec = fp8_job();
  spec.mutable_resources()->set_devices(2);
  spec.mutable_parallel()->set_tensor(2);
  const auto train = record_train(fp8_shape(spec));
  int gathered = 0, parts = 0;
  for (const Op& op : train->program.ops()) {
    if (op.name.find("qkv.x.gather") != std::string::npos && op.phase == engine::Phase::kTensorComm) {
      gathered += op.comm->dtype == engine::DType::kF8E4M3;
    }
    parts += op.name.find("qkv.part") != std::string::npos;
  }
  EXPECT_GE(gathered, 2 * kRounds * kDepth);  // Forward, and for the weight's gradient.
  EXPECT_GE(parts, 2 * kRounds * kDepth);
}

// Inputs' copies of a byte instead of inputs.
TEST(Fp8Programs, KeepsLessThanBf16) {
  v1::JobSpec bf16 = fp8_job();
  bf16.mutable_precision()->set_compute(v1::BF16);
  EXPECT_LT(fp8_activation_bytes(fp8_shape(fp8_job())), fp8_activation_bytes(fp8_shape(bf16)));
}

TEST(Fp8Programs, DevicesWithoutFp8AreRefused) {
  backend::DeviceInfo device;
  device.model = "An old one";
  const absl::Status status = check_device(fp8_shape(fp8_job()), device);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("An old one; use bf16"));
  device.multiplies_fp8 = true;
  EXPECT_TRUE(check_device(fp8_shape(fp8_job()), device).ok());
  v1::JobSpec bf16 = fp8_job();
  v1::JobSpec blocks = fp8_job();
  blocks.mutable_precision()->set_recipe(v1::PrecisionSpec::BLOCK);
  EXPECT_THAT(std::string(check_device(fp8_shape(blocks), device).message()),
              ::testing::HasSubstr("spec.precision.recipe: block needs a GPU of compute capability 9.0"));
  device.multiplies_fp8_blocks = true;
  EXPECT_TRUE(check_device(fp8_shape(blocks), device).ok());
  bf16.mutable_precision()->set_compute(v1::BF16);
  device.multiplies_fp8 = false;
  EXPECT_TRUE(check_device(fp8_shape(bf16), device).ok());
}

TEST(Fp8Programs, PeakIsThatOfTheMixture) {
  const RunShape run = fp8_shape(fp8_job());
  backend::DeviceInfo device;
  device.peak_flops_bf16 = 1;
  device.peak_flops_f8 = 2;
  const double share = fp8_flops_share(run.spec);
  EXPECT_GT(share, 0.2);
  EXPECT_NEAR(peak_flops(run, device), 1 / (share / 2 + (1 - share)), 1e-12);
  device.peak_flops_f8 = 0;
  EXPECT_EQ(peak_flops(run, device), 0);
  v1::JobSpec spec = run.spec;
  spec.mutable_precision()->Clear();
  spec.mutable_precision()->set_compute(v1::BF16);
  EXPECT_EQ(peak_flops(fp8_shape(spec), device), 1);
}

}  // namespace
}  // namespace telar::plan
