// The validator must object to every plan that is not the planner's: mutations of good plans, one at a time.
#include "worker/engine/validate.h"

#include <gmock/gmock.h>

#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using testing::comm_lane;
using ::testing::HasSubstr;
using testing::kComputeLane;
using testing::mix;
using testing::persistent;
using testing::random_program;
using testing::read;
using testing::transient;
using testing::update;
using testing::write;

std::string objection(const Program& program, const Plan& plan) {
  const absl::Status status = validate(program, plan);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInternal) << status;
  return std::string(status.message());
}

// Compute makes `a` and then `b`; comm updates `a`; both are read at the end.
class ValidateTest : public ::testing::Test {
 protected:
  ValidateTest() {
    const Tensor a = transient(program_, "a", 256);
    const Tensor b = transient(program_, "b", 256);
    const Tensor kept = persistent(program_, "kept", 256, MemoryClass::kActivations);
    mix(program_, "make a", kComputeLane, {write(a)});
    mix(program_, "reduce a", comm_lane(0), {update(a)});
    mix(program_, "make b", kComputeLane, {write(b)});
    mix(program_, "use", kComputeLane, {read(a), read(b), update(kept)});
    plan_ = plan(program_).value();
  }
  Program program_;
  Plan plan_;
};

TEST_F(ValidateTest, AcceptsThePlan) { EXPECT_EQ(objection(program_, plan_), ""); }

TEST_F(ValidateTest, SeesADroppedWait) {
  plan_.ops[3].waits.clear();
  EXPECT_THAT(objection(program_, plan_), HasSubstr("nothing orders op 'reduce a' before op 'use'"));
}

TEST_F(ValidateTest, SeesADroppedRecord) {
  plan_.ops[0].record = kNoEvent;
  EXPECT_THAT(objection(program_, plan_), HasSubstr("which no earlier op records"));
}

TEST_F(ValidateTest, SeesAWaitForALaterRecord) {
  std::swap(plan_.ops[0].record, plan_.ops[2].record);
  EXPECT_THAT(objection(program_, plan_), HasSubstr("op 'reduce a' waits for event"));
}

TEST_F(ValidateTest, SeesAnEventThatTwoOpsRecord) {
  plan_.ops[2].record = plan_.ops[0].record;
  EXPECT_THAT(objection(program_, plan_), HasSubstr("not its own"));
}

TEST_F(ValidateTest, SeesASwappedLane) {
  plan_.ops[1].lane = 0;
  EXPECT_THAT(objection(program_, plan_), HasSubstr("op 'reduce a' is not on its lane comm0"));
  plan_.ops[1].lane = 9;
  EXPECT_THAT(objection(program_, plan_), HasSubstr("not on its lane"));
}

TEST_F(ValidateTest, SeesBuffersThatOverlapWhileBothAreAlive) {
  plan_.offsets[1] = plan_.offsets[0];
  EXPECT_NE(objection(program_, plan_), "");
}

TEST_F(ValidateTest, SeesOverlapEvenWhereOneLaneOrdersEverything) {
  Program program;
  const Tensor a = transient(program, "a", 256);
  const Tensor b = transient(program, "b", 256);
  mix(program, "a", kComputeLane, {write(a)});
  mix(program, "b", kComputeLane, {write(b)});
  mix(program, "use", kComputeLane, {read(a), read(b)});
  Plan overlapping = plan(program).value();
  overlapping.offsets[1] = overlapping.offsets[0];
  EXPECT_THAT(objection(program, overlapping), HasSubstr("op 'use' reads byte 0 of 'a', which holds something else"));
}

TEST_F(ValidateTest, SeesOverlapOfInputAndOutputOfOneOp) {
  Program program;
  const Tensor a = transient(program, "a", 256);
  const Tensor b = transient(program, "b", 256);
  mix(program, "a", kComputeLane, {write(a)});
  mix(program, "b", kComputeLane, {read(a), write(b)});
  Plan overlapping = plan(program).value();
  overlapping.offsets[1] = overlapping.offsets[0];
  EXPECT_THAT(objection(program, overlapping), HasSubstr("op 'b' uses the same bytes as 'a' and as 'b'"));
}

TEST_F(ValidateTest, SeesAPersistentBufferOverwritten) {
  Program program;
  const Tensor kept = persistent(program, "kept", 512);
  const Tensor passing = transient(program, "passing", 256, MemoryClass::kWeights);
  mix(program, "read", kComputeLane, {read(kept)});
  mix(program, "write", kComputeLane, {write(passing)});
  Plan overlapping = plan(program).value();
  overlapping.offsets[passing.buffer()] = 256;
  EXPECT_THAT(objection(program, overlapping), HasSubstr("persistent 'kept' is overwritten"));
}

TEST_F(ValidateTest, SeesTwoPersistentBuffersOverlap) {
  Program program;
  const Tensor a = persistent(program, "a", 512);
  const Tensor b = persistent(program, "b", 512);
  mix(program, "op", kComputeLane, {read(a), read(b)});
  Plan overlapping = plan(program).value();
  overlapping.offsets[b.buffer()] = 256;
  EXPECT_THAT(objection(program, overlapping), HasSubstr("overlaps"));
}

TEST_F(ValidateTest, SeesBytesOutsideOfTheArena) {
  plan_.arena_bytes.fill(256);
  EXPECT_NE(objection(program_, plan_), "");
}

TEST_F(ValidateTest, SeesAMisalignedBuffer) {
  plan_.offsets[1] += 1;
  EXPECT_THAT(objection(program_, plan_), HasSubstr("not aligned"));
}

TEST_F(ValidateTest, SeesAPlanOfAnotherProgram) {
  mix(program_, "more", kComputeLane, {});
  EXPECT_THAT(objection(program_, plan_), HasSubstr("another program"));
}

// Whether two buffers are ever both in use, in list order.
bool lives_overlap(const Program& program, BufferId a, BufferId b) {
  const auto life = [&](BufferId id) {
    std::pair<OpId, OpId> ends{1, 0};  // None.
    bool any = false;
    for (OpId op = 0; op < program.ops().size(); ++op) {
      for (const Access& access : program.ops()[op].accesses) {
        if (access.buffer != id || access.begin == access.end) continue;
        if (!any) ends.first = op;
        any = true;
        ends.second = op;
      }
    }
    return ends;
  };
  const auto [a_first, a_last] = life(a);
  const auto [b_first, b_last] = life(b);
  return a_first <= a_last && b_first <= b_last && a_first <= b_last && b_first <= a_last;
}

// What the first op writes must last until the last op: written whole, then read or updated, at the end read whole.
bool whole_life(const Program& program, BufferId id) {
  bool first = true;
  const Access* last = nullptr;
  for (const Op& op : program.ops()) {
    for (const Access& access : op.accesses) {
      if (access.buffer != id) continue;
      if (first ? access.begin != 0 || access.end != program.buffers()[id].bytes : !access.reads()) return false;
      first = false;
      last = &access;
    }
  }
  return last != nullptr && last->reads() && last->begin == 0 && last->end == program.buffers()[id].bytes;
}

TEST(ValidateMutationTest, SeesEveryDroppedWaitOfRandomPrograms) {
  int mutations = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = random_program(seed);
    const Plan good = plan(program).value();
    for (OpId op = 0; op < program.ops().size(); ++op) {
      for (size_t i = 0; i < good.ops[op].waits.size(); ++i, ++mutations) {
        Plan bad = good;
        bad.ops[op].waits.erase(bad.ops[op].waits.begin() + static_cast<std::ptrdiff_t>(i));
        ASSERT_NE(objection(program, bad), "") << "op " << op << " wait " << i;
      }
    }
  }
  EXPECT_GT(mutations, 400);
}

TEST(ValidateMutationTest, SeesOverlappingBuffersOfRandomPrograms) {
  int mutations = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = random_program(seed);
    const Plan good = plan(program).value();
    for (BufferId a = 0; a < program.buffers().size(); ++a) {
      for (BufferId b = 0; b < program.buffers().size(); ++b) {
        const Buffer& first = program.buffers()[a];
        const Buffer& second = program.buffers()[b];
        if (a == b || first.lifetime != Lifetime::kTransient || second.lifetime != Lifetime::kTransient ||
            first.memory_class != second.memory_class || !whole_life(program, a) || !whole_life(program, b) ||
            !lives_overlap(program, a, b)) {
          continue;
        }
        Plan bad = good;
        bad.offsets[a] = bad.offsets[b];
        ASSERT_NE(objection(program, bad), "") << "buffers " << a << " and " << b;
        ++mutations;
      }
    }
  }
  EXPECT_GT(mutations, 100);
}

}  // namespace
}  // namespace telar::engine
