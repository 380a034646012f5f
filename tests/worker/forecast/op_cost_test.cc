#include "worker/forecast/op_cost.h"

#include <gtest/gtest.h>

#include <numeric>

#include "worker/engine/program.h"
#include "worker/forecast/rates.h"

namespace telar::forecast {
namespace {

using backend::Communicator;
using backend::Kernels;
using engine::CommKind;
using engine::DType;
using engine::MemoryClass;
using engine::Program;
using engine::Tensor;

constexpr double kGB = 1e9;

class OpCostTest : public ::testing::Test {
 protected:
  // As of single calls: products and transfers alone.
  static v1::Rates alone() {
    v1::Rates rates = *find_rates("h200");
    rates.mutable_products()->clear_start_seconds();
    rates.mutable_domain()->clear_step_share();
    return rates;
  }
  const v1::Rates rates_ = alone();
  const OpCosts costs_{rates_, {}};
  static Tensor tensor(Program& program, DType dtype, engine::Shape shape) {
    return program.persistent("x", dtype, shape, MemoryClass::kActivations);
  }
};

TEST_F(OpCostTest, LargeProductsRunAtTheSustainedRate) {
  Program program;
  program.record_kernel("y", 2.0 * 8192 * 8192 * 8192, &Kernels::linear,
                        tensor(program, DType::kBF16, {8192, 8192}).in(),
                        tensor(program, DType::kBF16, {8192, 8192}).in(), Tensor().in(),
                        tensor(program, DType::kBF16, {8192, 8192}).out());
  const double rate = 2.0 * 8192 * 8192 * 8192 / costs_.seconds(program.ops()[0]);
  EXPECT_NEAR(rate, 670e12, 20e12);
}

TEST_F(OpCostTest, ProductsInEightBitsAreFaster) {
  enum class In { kBF16, kFp8, kBlocks };
  const auto seconds = [&](In in) {
    Program program;
    const DType dtype = in == In::kBF16 ? DType::kBF16 : DType::kF8E4M3;
    const bool blocks = in == In::kBlocks;
    const Tensor a = tensor(program, dtype, {8192, 4096}), b = tensor(program, dtype, {6144, 4096}),
                 a_scale = tensor(program, DType::kF32, blocks ? engine::Shape{32, 8192} : engine::Shape{1}),
                 b_scale = tensor(program, DType::kF32, blocks ? engine::Shape{48, 32} : engine::Shape{1}),
                 y = tensor(program, DType::kBF16, {8192, 6144});
    if (in != In::kBF16) {
      program.record("y", &Kernels::fp8_product, a.in(), a_scale.in(), b.in(), b_scale.in(), Tensor().in(), true,
                     y.out());
    } else {
      program.record("y", &Kernels::linear, a.in(), b.in(), Tensor().in(), y.out());
    }
    return costs_.seconds(program.ops()[0]);
  };
  EXPECT_NEAR(seconds(In::kBF16) / seconds(In::kFp8), rates_.products().fp8_share(), 0.05);
  EXPECT_NEAR(seconds(In::kBF16) / seconds(In::kBlocks), rates_.products().fp8_block_share(), 0.05);
}

TEST_F(OpCostTest, QuantisingIsItsBytesAtItsRate) {
  Program program;
  const Tensor x = tensor(program, DType::kBF16, {16384, 8192}), amax = tensor(program, DType::kF32, {1});
  program.record("q", &Kernels::quantize, x.in(), amax.in(), tensor(program, DType::kF8E4M3, {16384, 8192}).out(),
                 tensor(program, DType::kF8E4M3, {8192, 16384}).out(), tensor(program, DType::kF32, {1}).out(),
                 Tensor().inout());
  EXPECT_NEAR(costs_.seconds(program.ops()[0]), 4.0 * 16384 * 8192 / (0.87 * 4.24e12), 5e-6);
}

TEST_F(OpCostTest, FewTilesLeaveMostOfTheDeviceIdle) {
  // Half the rows of a tile take as long as all of them; a tile more than the units hold takes another round.
  EXPECT_DOUBLE_EQ(costs_.product(64, 4096, 1000, 1, 0), costs_.product(128, 4096, 1000, 1, 0));
  const double full = costs_.product(128 * 132, 256, 1000, 1, 0), more = costs_.product(128 * 133, 256, 1000, 1, 0);
  EXPECT_NEAR(more / full, 2, 0.35);
  // A deep product is cut along its depth instead.
  EXPECT_LT(costs_.product(128, 256, 65536, 1, 0), 0.1 * costs_.product(128, 256, 1023, 1, 0) * 64);
  // One row of a large matrix is its bytes.
  EXPECT_DOUBLE_EQ(costs_.product(1, 65536, 8192, 1, 2.0 * 65536 * 8192),
                   2.0 * 65536 * 8192 / rates_.copy_bytes_per_second());
}

TEST_F(OpCostTest, AGradientThatIsAddedToTakesLonger) {
  Program program;
  for (const bool adds : {false, true}) {
    program.record_kernel("w", 1, &Kernels::linear_wgrad, tensor(program, DType::kBF16, {8192, 4096}).in(),
                          tensor(program, DType::kBF16, {8192, 4096}).in(), adds,
                          tensor(program, DType::kF32, {4096, 4096}).inout(), Tensor().inout());
  }
  EXPECT_GT(costs_.seconds(program.ops()[1]), costs_.seconds(program.ops()[0]));
}

TEST_F(OpCostTest, LongSequencesAttendAtAHigherRate) {
  const auto rate = [&](int64_t sequence) {
    Program program;
    const backend::AttentionDims dims{1, sequence, 8, 8, 128};
    const double flops = 2.0 * 8 * static_cast<double>(sequence * sequence) * 128;
    program.record_kernel(
        "a", flops, &Kernels::attention, dims, tensor(program, DType::kBF16, {sequence, 3 * 1024}).in(), Tensor().in(),
        tensor(program, DType::kBF16, {sequence, 1024}).out(), tensor(program, DType::kF32, {1, 8, sequence}).out());
    return flops / costs_.seconds(program.ops()[0]);
  };
  EXPECT_NEAR(rate(8192), 474e12, 15e12);  // 561 alone times what power leaves: docs/performance.md.
  EXPECT_LT(rate(1024), 0.75 * rate(8192));
}

TEST_F(OpCostTest, OtherKernelsAreTheirBytes) {
  Program program;
  program.record("add", &Kernels::add, tensor(program, DType::kBF16, {1 << 20, 1024}).in(),
                 tensor(program, DType::kBF16, {1 << 20, 1024}).in(),
                 tensor(program, DType::kBF16, {1 << 20, 1024}).out());
  EXPECT_NEAR(costs_.seconds(program.ops()[0]), 6.0 * (1 << 30) / 4.24e12, 5e-6);
  // Of a table only the rows that ids name.
  Program lookup;
  lookup.record("embed", &Kernels::embedding, tensor(lookup, DType::kI32, {128}).in(),
                backend::VocabSlice{0, 50257, 50257}, tensor(lookup, DType::kBF16, {50257, 1024}).in(), Tensor().in(),
                Tensor().in(), int64_t{128}, tensor(lookup, DType::kBF16, {128, 1024}).out());
  EXPECT_DOUBLE_EQ(traffic_of(lookup.ops()[0]), 128 * 4 + 2 * 128 * 1024 * 2);
}

backend::Group group_of(int size, int stride) {
  backend::Group group{"g", std::vector<int>(static_cast<size_t>(size))};
  for (int i = 0; i < size; ++i) group.ranks[static_cast<size_t>(i)] = i * stride;
  return group;
}

TEST_F(OpCostTest, GroupsAreInsideDomainsOrNot) {
  EXPECT_TRUE(link_of(group_of(8, 1), 8).within);
  const GroupLink wide = link_of(group_of(16, 1), 8);
  EXPECT_FALSE(wide.within);
  EXPECT_EQ(wide.in_domain, 8);
  EXPECT_EQ(link_of(group_of(16, 8), 8).in_domain, 1);
  EXPECT_EQ(link_of(group_of(6, 2), 8).in_domain, 2);  // 0 2 4 6 | 8 10: the domain that has fewest counts.
}

TEST_F(OpCostTest, CollectivesTakeWhatWasMeasuredOfTwo) {
  const GroupLink two{.size = 2};
  // h200: 1 GiB at 323 GB/s of bus bandwidth, 16 MiB at 212.
  EXPECT_NEAR(costs_.call(CommKind::kAllReduce, two, 1 << 30), (1 << 30) / (323 * kGB), 1e-6);
  EXPECT_NEAR(costs_.call(CommKind::kAllReduce, two, 1 << 24), (1 << 24) / (212 * kGB), 1e-7);
  // Of a gather each gives its part.
  EXPECT_NEAR(costs_.call(CommKind::kAllGather, two, 1 << 29), (1 << 29) / (285 * kGB), 1e-6);
  // Small calls take as long as the smallest that was measured.
  EXPECT_DOUBLE_EQ(costs_.call(CommKind::kAllReduce, two, 16), costs_.call(CommKind::kAllReduce, two, 65536));
  EXPECT_EQ(costs_.call(CommKind::kAllReduce, GroupLink{.size = 1}, 1 << 30), 0);
}

TEST_F(OpCostTest, RingsOverDomainsHaveTheAdaptersOfTheirMembers) {
  const double bytes = 1 << 30;
  const double inside = costs_.call(CommKind::kReduceScatter, link_of(group_of(8, 1), 8), bytes);
  const double eight = costs_.call(CommKind::kReduceScatter, link_of(group_of(16, 1), 8), bytes);
  const double one = costs_.call(CommKind::kReduceScatter, link_of(group_of(16, 8), 8), bytes);
  EXPECT_LT(inside, eight);
  EXPECT_NEAR(eight, bytes * 15 / 16 / (260 * kGB), 1e-3);  // Eight adapters have 368 GB/s: NVLink is the narrower.
  EXPECT_NEAR(one, bytes * 15 / 16 / (46 * kGB), 1e-3);
}

TEST_F(OpCostTest, TransfersAreSlowerInAStepThanAlone) {
  v1::Rates rates = rates_;
  const double bytes = 1 << 26;
  const auto seconds = [&](double share) {
    rates.mutable_domain()->set_step_share(share);
    return OpCosts(rates, {}).call(CommKind::kAllGather, {.size = 2}, bytes);
  };
  EXPECT_DOUBLE_EQ(seconds(0.5), 2 * seconds(1));
  EXPECT_DOUBLE_EQ(seconds(0), seconds(1));  // Nothing is known.
}

TEST_F(OpCostTest, WhereADeviceWaitsItsClockRises) {
  v1::Rates rates = rates_;
  rates.clear_waiting_power();
  EXPECT_EQ(clock_of(rates, 0.5), 1);  // Nothing says that power is short.
  rates.set_waiting_power(0.25);
  EXPECT_EQ(clock_of(rates, 1), 1);
  // Busy for 4/5 of the time it draws 0.85 of the limit at the sustained clock.
  EXPECT_NEAR(clock_of(rates, 0.8), std::cbrt(1 / 0.85), 1e-12);
  EXPECT_DOUBLE_EQ(clock_of(rates, 0.01), rates.products().peak_flops() / rates.products().sustained_flops());
}

TEST_F(OpCostTest, AHigherClockHelpsWhatArithmeticBounds) {
  EXPECT_NEAR(costs_.product(8192, 8192, 8192, 1, 0) / costs_.product(8192, 8192, 8192, 1, 0, 1.1), 1.1, 1e-9);
  const double copied = 1e12;
  EXPECT_EQ(costs_.product(1, 8192, 8192, 1, copied, 1.1), costs_.product(1, 8192, 8192, 1, copied));
}

TEST_F(OpCostTest, ManySmallProductsStartMoreOften) {
  v1::Rates rates = rates_;
  rates.mutable_products()->set_start_seconds(0);
  const double without = OpCosts(rates, {}).product(2048, 4096, 4096, 1, 0);
  rates.mutable_products()->set_start_seconds(5e-6);
  EXPECT_DOUBLE_EQ(OpCosts(rates, {}).product(2048, 4096, 4096, 1, 0), without + 5e-6);
}

}  // namespace
}  // namespace telar::forecast
