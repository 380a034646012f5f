#include <gtest/gtest.h>

#include "tests/worker/engine/testing.h"
#include "worker/engine/plan.h"

namespace telar::engine {
namespace {

using testing::comm_lane;
using testing::kComputeLane;
using testing::mix;
using testing::read;
using testing::update;
using testing::write;

class DumpTest : public ::testing::Test {
 protected:
  DumpTest() {
    const Tensor ids = testing::external(program_, "ids", 16);
    const Tensor grad = testing::persistent(program_, "grad", 300, MemoryClass::kGrads);
    const Tensor x = testing::transient(program_, "x", 64);
    const Tensor y = testing::transient(program_, "y", 64);
    const Tensor z = testing::transient(program_, "z", 64);
    mix(program_, "embed", kComputeLane, {read(ids), write(x)});
    mix(program_, "wgrad", kComputeLane, {read(x), write(y), write(grad)});
    mix(program_, "reduce", comm_lane(0), {update(grad)});
    mix(program_, "norm \"2\"", kComputeLane, {read(y), write(z)});
    mix(program_, "step", kComputeLane, {read(z), testing::make_access(grad, 0, 100, backend::AccessMode::kRead)});
    plan_ = plan(program_).value();
  }
  Program program_;
  Plan plan_;
};

TEST_F(DumpTest, TextIsGolden) {
  EXPECT_EQ(to_text(program_, plan_),
            R"(5 ops, 2 lanes, 2 events, 1024 bytes
arena grads 512
arena activations 512
0 compute 'embed': R external[0, 16) 'ids', W activations[0, 64) 'x'
1 compute 'wgrad' records 0: R activations[0, 64) 'x', W activations[256, 320) 'y', W grads[0, 300) 'grad'
2 comm0 'reduce' waits 0 records 1: RW grads[0, 300) 'grad'
3 compute 'norm "2"': R activations[256, 320) 'y', W activations[0, 64) 'z'
4 compute 'step' waits 1: R activations[0, 64) 'z', R grads[0, 100) 'grad'
)");
}

TEST_F(DumpTest, DotIsGolden) {
  EXPECT_EQ(to_dot(program_, plan_),
            R"(digraph plan {
  node [shape=box];
  subgraph cluster_0 {
    label="compute";
    n0 [label="embed"];
    n1 [label="wgrad"];
    n3 [label="norm \"2\""];
    n4 [label="step"];
    n0 -> n1 -> n3 -> n4 [style=invis, weight=10];
  }
  subgraph cluster_1 {
    label="comm0";
    n2 [label="reduce"];
    n2 [style=invis, weight=10];
  }
  n0 -> n1 [label="RAW x"];
  n1 -> n2 [label="RAW+WAW grad", style=bold];
  n1 -> n3 [label="RAW+reuse y"];
  n2 -> n4 [label="RAW grad", style=bold];
  n3 -> n4 [label="RAW z"];
}
)");
}

}  // namespace
}  // namespace telar::engine
