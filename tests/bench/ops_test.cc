#include "bench/ops.h"

#include <gmock/gmock.h>

#include "bench/profile.h"
#include "bench/spec.h"
#include "worker/plan/programs.h"

namespace telar::bench {
namespace {

using backend::Kernels;
using engine::DType;
using engine::MemoryClass;
using engine::Program;
using engine::Tensor;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(Ops, KindsForgetWhichMicroBatchAndLayerButNotTheWay) {
  const auto kind = [](const std::string& name, const std::string& switches = "") {
    engine::Op op;
    op.name = name;
    op.switches = switches;
    return kind_of(op);
  };
  EXPECT_EQ(kind("mb3/layers.11.qkv.wgrad", "1"), "layers.*.qkv.wgrad:1");
  EXPECT_EQ(kind("mb0/head.chunk12.dgrad"), "head.chunk*.dgrad");
  EXPECT_EQ(kind("optimizer/adamw.decay.7"), "optimizer/adamw.decay.*");
  EXPECT_EQ(kind("embed"), "embed");
}

class OpsTest : public ::testing::Test {
 protected:
  Tensor tensor(DType dtype, engine::Shape shape) {
    return program_.persistent("x", dtype, shape, MemoryClass::kActivations);
  }
  Program program_;
};

TEST_F(OpsTest, TheKernelIsKnownByItsMethod) {
  const Tensor x = tensor(DType::kF32, {2, 4}), w = tensor(DType::kF32, {3, 4}), y = tensor(DType::kF32, {2, 3});
  program_.record("a", &Kernels::linear, x.in(), w.in(), Tensor().in(), y.out());
  program_.record("b", &Kernels::linear_wgrad, y.in(), x.in(), false, w.inout(), Tensor().inout());
  program_.record("c", 0, &backend::Communicator::all_reduce, backend::ReduceOp::kSum, y.inout());
  EXPECT_EQ(kernel_of(program_.ops()[0]), "linear");
  EXPECT_EQ(kernel_of(program_.ops()[1]), "linear_wgrad");
  EXPECT_EQ(kind_of(program_.ops()[1]), "b:0");
  EXPECT_EQ(kernel_of(program_.ops()[2]), "collective");
  EXPECT_THAT(kernel_names(), AllOf(Contains("linear"), Contains("linear_wgrad"), Contains("adamw"), Contains("fill")));
  EXPECT_EQ(shapes_of(program_.ops()[0]), "[2, 4] [3, 4] > [2, 3]");
  EXPECT_EQ(shapes_of(program_.ops()[1]), "[2, 3] [2, 4] > [3, 4]*");
}

TEST_F(OpsTest, ATableIsReadOnlyWhereIdsPoint) {
  const Tensor ids = tensor(DType::kI32, {2}), table = tensor(DType::kF32, {100, 8}), y = tensor(DType::kF32, {2, 8});
  program_.record("embed", &Kernels::embedding, ids.in(), backend::VocabSlice{0, 100, 100}, table.in(), Tensor().in(),
                  Tensor().in(), int64_t{2}, y.out());
  program_.record("embed.backward", &Kernels::embedding_backward, ids.in(), backend::VocabSlice{0, 100, 100}, y.in(),
                  Tensor().in(), int64_t{2}, table.inout(), Tensor().inout());
  EXPECT_DOUBLE_EQ(traffic_of(program_.ops()[0]), 2 * 4 + 2 * 8 * 4 + 2 * 8 * 4);
  EXPECT_DOUBLE_EQ(traffic_of(program_.ops()[1]), 2 * 4 + 2 * 8 * 4 + 2 * (2 * 8 * 4));
}

TEST_F(OpsTest, AProfileSumsByKindAndPhase) {
  const Tensor x = tensor(DType::kF32, {4}), y = tensor(DType::kF32, {4});
  for (const char* prefix : {"mb0/", "mb1/"}) {
    const Program::Scope scope(program_, prefix, engine::Phase::kForward);
    program_.record("copy", &Kernels::copy, x.in(), y.out());
  }
  const Program::Scope scope(program_, "", engine::Phase::kOptimizer);
  program_.record("fill", &Kernels::fill, 0.0f, x.out());
  const StepProfile profile = make_profile(program_, {1.0, 2.0, 4.0}, 10.0);
  EXPECT_THAT(profile.phases, UnorderedElementsAre(Pair("forward", 3.0), Pair("optimizer", 4.0), Pair("outside", 3.0)));
  EXPECT_DOUBLE_EQ(profile.ops_seconds, 7.0);
  EXPECT_THAT(profile.kinds, ElementsAre(AllOf(Field(&KindTime::kind, "fill"), Field(&KindTime::count, 1)),
                                         AllOf(Field(&KindTime::kind, "copy"), Field(&KindTime::count, 2),
                                               Field(&KindTime::seconds, 3.0), Field(&KindTime::bytes, 2 * 2 * 16.0))));
  EXPECT_THAT(to_text(profile), HasSubstr("copy"));
}

TEST(Specs, EveryPresetResolvesAndCanBeOverridden) {
  for (const std::string& preset : preset_names()) {
    SCOPED_TRACE(preset);
    ASSERT_TRUE(make_spec({.preset = preset, .gpu = true}).ok());
    const auto spec =
        make_spec({.preset = preset, .micro = 2, .accumulate = 3, .sequence = 16, .layers = 1, .precision = "fp32"});
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->batch().micro(), 2u);
    EXPECT_EQ(spec->batch().global(), 6u);
    EXPECT_EQ(spec->batch().sequence_length(), 16u);
    EXPECT_EQ(spec->model().layers(), 1u);
    EXPECT_EQ(spec->precision().compute(), v1::FP32);
  }
  EXPECT_EQ(make_spec({.preset = "gpt3"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(make_spec({.preset = "small-gpt2", .precision = "f8"}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace telar::bench
