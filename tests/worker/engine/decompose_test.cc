#include "worker/engine/decompose.h"

#include <gmock/gmock.h>

#include "worker/engine/comm_check.h"
#include "worker/engine/plan.h"

namespace telar::engine {
namespace {

using backend::Communicator;
using backend::Kernels;
using backend::ReduceOp;
using ::testing::ElementsAre;

constexpr int64_t kRows = 32, kIn = 8, kOut = 6;

// A layer as tensor parallelism has it: gather, product, product, scatter.
struct Layer {
  explicit Layer(int ranks) : local_rows(kRows / ranks) {
    x = program.transient("x", DType::kF32, {local_rows, kIn}, MemoryClass::kActivations);
    whole = program.transient("whole", DType::kF32, {kRows, kIn}, MemoryClass::kCommunication);
    w = program.persistent("w", DType::kF32, {kOut, kIn}, MemoryClass::kWeights);
    v = program.persistent("v", DType::kF32, {kIn, kOut}, MemoryClass::kWeights);
    dw = program.persistent("dw", DType::kF32, {kOut, kIn}, MemoryClass::kGrads);
    hidden = program.transient("hidden", DType::kF32, {kRows, kOut}, MemoryClass::kActivations);
    partial = program.transient("partial", DType::kF32, {kRows, kIn}, MemoryClass::kActivations);
    y = program.transient("y", DType::kF32, {local_rows, kIn}, MemoryClass::kActivations);
    program.record("begin", &Kernels::fill, 1.0f, x.out());
  }
  void gather() { program.record("gather", 0, &Communicator::all_gather, x.in(), whole.out()); }
  void up() {
    program.record_kernel("up", 1.0, &Kernels::linear, by_rows(whole.in()), w.in(), In(), by_rows(hidden.out()));
  }
  void wgrad() {
    program.record_kernel("wgrad", 1.0, &Kernels::linear_wgrad, hidden.in(), whole.in(), false, dw.inout(), InOut());
  }
  void down() {
    program.record_kernel("down", 1.0, &Kernels::linear, by_rows(hidden.in()), v.in(), In(), by_rows(partial.out()));
  }
  void scatter() { program.record("scatter", 0, &Communicator::reduce_scatter, ReduceOp::kSum, partial.in(), y.out()); }
  void use() { program.record("use", &Kernels::fill, 0.0f, y.out()); }

  int64_t local_rows;
  Program program;
  Tensor x, whole, w, v, dw, hidden, partial, y;
};

std::vector<std::string> names(const Program& program) {
  std::vector<std::string> all;
  for (const Op& op : program.ops()) all.push_back(op.name);
  return all;
}

const Op& op_named(const Program& program, const std::string& name) {
  for (const Op& op : program.ops()) {
    if (op.name == name) return op;
  }
  ADD_FAILURE() << "no op " << name;
  return program.ops()[0];
}

// Rows of the tensor that an access covers.
std::pair<int64_t, int64_t> rows_of(const Access& access) {
  const auto row = static_cast<uint64_t>(access.shape.cols()) * size_of(access.dtype);
  return {static_cast<int64_t>(access.begin / row), static_cast<int64_t>((access.end - access.begin) / row)};
}
using Span = std::pair<int64_t, int64_t>;

TEST(Decompose, AProductBeginsWithItsOwnRows) {
  Layer layer(4);
  layer.gather();
  layer.up();
  const Program cut = decompose(layer.program, {.rank = 1, .size = 4});
  EXPECT_THAT(names(cut), ElementsAre("begin", "gather.part0", "gather.part1", "gather.part2", "up.part0", "up.part1",
                                      "up.part2", "up.part3"));
  const std::vector<const char*> exchanges = {"exchange to 0 from 2 of 64 f32", "exchange to 3 from 3 of 64 f32",
                                              "exchange to 2 from 0 of 64 f32"};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(cut.ops()[1 + i].comm->to_string(), exchanges[i]);
  const std::vector<Span> written = {{8, 8}, {16, 8}, {24, 8}, {0, 8}};
  for (size_t i = 0; i < 4; ++i) {
    const Op& part = cut.ops()[4 + i];
    EXPECT_EQ(rows_of(part.accesses.back()), written[i]);
    EXPECT_EQ(part.accesses[0].buffer, i == 0 ? layer.x.buffer() : layer.whole.buffer());
    EXPECT_EQ(rows_of(part.accesses[0]), i == 0 ? Span(0, 8) : written[i]);
    EXPECT_DOUBLE_EQ(part.cost.flops, 0.25);
    EXPECT_TRUE(part.kernel == KernelId(&Kernels::linear));
  }
  const Plan planned = plan(cut).value();
  EXPECT_TRUE(planned.ops[4].waits.empty());
  for (size_t i = 5; i < 8; ++i) EXPECT_EQ(planned.ops[i].waits.size(), 1u);  // For its own rows only.
}

TEST(Decompose, WhatOthersReadIsCompletedAfterTheProduct) {
  Layer layer(2);
  layer.gather();
  layer.up();
  layer.wgrad();
  const Program cut = decompose(layer.program, {.rank = 1, .size = 2, .least_rows = 16});
  EXPECT_THAT(names(cut), ElementsAre("begin", "gather.part0", "up.part0", "up.part1", "gather.own1", "wgrad"));
  EXPECT_EQ(rows_of(op_named(cut, "gather.own1").accesses[1]), Span(16, 16));
  EXPECT_TRUE(plan(cut).ok());
}

TEST(Decompose, OtherRanksRowsLeaveWhileTheNextAreComputed) {
  Layer layer(4);
  layer.gather();
  layer.up();
  layer.down();
  layer.scatter();
  layer.use();
  const Program cut = decompose(layer.program, {.rank = 1, .size = 4});
  const std::vector<std::string> all = names(cut);
  EXPECT_THAT(std::vector<std::string>(all.begin() + 8, all.end()),
              ElementsAre("down.part0", "scatter.part0", "down.part1", "scatter.part1", "down.part2", "scatter.part2",
                          "down.part3", "scatter.sum1", "scatter.sum2", "scatter.sum3", "use"));
  EXPECT_EQ(op_named(cut, "scatter.part0").comm->to_string(), "exchange to 2 from 0 of 64 f32");
  EXPECT_EQ(op_named(cut, "scatter.part2").comm->to_string(), "exchange to 0 from 2 of 64 f32");
  EXPECT_EQ(rows_of(op_named(cut, "down.part0").accesses.back()), Span(16, 8));
  EXPECT_EQ(rows_of(op_named(cut, "down.part3").accesses.back()), Span(8, 8));
  // In the order of the ranks: 0 as received, 1 as computed, then 2 and 3.
  const Op& first = op_named(cut, "scatter.sum1");
  EXPECT_EQ(cut.buffers()[first.accesses[0].buffer].name, "partial.received");
  EXPECT_EQ(rows_of(first.accesses[0]), Span(0, 8));
  EXPECT_EQ(first.accesses[1].buffer, layer.partial.buffer());
  EXPECT_EQ(rows_of(op_named(cut, "scatter.sum3").accesses[1]), Span(16, 8));
  const Plan planned = plan(cut).value();
  for (size_t op = 0; op < cut.ops().size(); ++op) {
    if (cut.ops()[op].name.rfind("down", 0) != 0) continue;
    EXPECT_TRUE(planned.ops[op].waits.empty()) << cut.ops()[op].name;
  }
}

TEST(Decompose, FewRanksGetTwoPiecesABlockWhereRowsAllow) {
  for (const auto& [least, pieces] : std::vector<std::pair<int64_t, size_t>>{{1, 4}, {8, 4}, {9, 2}, {16, 2}}) {
    Layer layer(2);
    layer.gather();
    layer.up();
    const Program cut = decompose(layer.program, {.rank = 0, .size = 2, .least_rows = least});
    EXPECT_EQ(cut.ops().size(), 1 + pieces / 2 + pieces) << least;
  }
}

void expect_untouched(const Layer& layer, Decomposition how = {.rank = 0, .size = 2}) {
  EXPECT_EQ(names(decompose(layer.program, how)), names(layer.program));
}

TEST(Decompose, LeavesWhatItCannotOrNeedNotCut) {
  Layer small(2);
  small.gather();
  small.up();
  expect_untouched(small, {.rank = 0, .size = 2, .least_rows = 17});
  expect_untouched(small, {.group = 1, .rank = 0, .size = 2});

  Layer hidden(2);  // Behind another product, which hides it.
  hidden.gather();
  hidden.program.record_kernel("other", 1.0, &Kernels::linear, hidden.x.in(), hidden.w.in(), In(),
                               hidden.program.transient("z", DType::kF32, {16, kOut}, MemoryClass::kActivations).out());
  hidden.up();
  expect_untouched(hidden);

  Layer changed(2);  // The own rows are something else by then.
  changed.gather();
  changed.program.record("change", &Kernels::fill, 2.0f, changed.x.out());
  changed.up();
  expect_untouched(changed);

  Layer unmarked(2);
  unmarked.gather();
  unmarked.program.record("h", &Kernels::fill, 0.0f, unmarked.hidden.out());
  unmarked.wgrad();
  expect_untouched(unmarked);

  Layer shared(2);  // Somebody else reads what would be scattered.
  shared.program.record("h", &Kernels::fill, 0.0f, shared.hidden.out());
  shared.down();
  shared.scatter();
  shared.program.record("copy", &Kernels::copy, shared.partial.in(),
                        shared.program.transient("c", DType::kF32, {kRows, kIn}, MemoryClass::kActivations).out());
  shared.use();
  expect_untouched(shared);

  Layer later(2);  // A product stands between the scatter and whoever wants it.
  later.gather();
  later.program.record("h", &Kernels::fill, 0.0f, later.hidden.out());
  later.down();
  later.scatter();
  later.wgrad();
  later.use();
  expect_untouched(later);
}

TEST(Decompose, WaitsThatWereAskedForStay) {
  Layer layer(2);
  layer.gather();
  layer.program.wait_for({LaneKind::kCompute, 0}, 0);
  layer.up();
  layer.program.wait_for({LaneKind::kCopyIn, 0}, 2);
  const Tensor host = layer.program.transient("host", DType::kF32, {kRows, kOut}, MemoryClass::kHost);
  layer.program.record_copy("out", LaneKind::kCopyOut, layer.hidden.in(), host.out());
  layer.program.record_copy("in", LaneKind::kCopyIn, host.in(), layer.hidden.out());
  const Program cut = decompose(layer.program, {.rank = 0, .size = 2, .least_rows = 16});
  EXPECT_THAT(op_named(cut, "up.part0").after, ElementsAre(0u));
  EXPECT_TRUE(op_named(cut, "up.part1").after.empty());
  const std::vector<OpId> after = op_named(cut, "in").after;
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(cut.ops()[after[0]].name, "up.part1");
}

TEST(Decompose, AllRanksFitTogether) {
  for (const int size : {2, 4, 8}) {
    std::vector<Program> programs;
    CommGroup group{"tensor", {}};
    for (int rank = 0; rank < size; ++rank) {
      Layer layer(size);
      layer.gather();
      layer.up();
      layer.wgrad();
      layer.down();
      layer.scatter();
      layer.use();
      programs.push_back(decompose(layer.program, {.rank = rank, .size = size}));
      group.ranks.push_back(static_cast<size_t>(rank));
    }
    std::vector<RankProgram> ranks;
    for (const Program& program : programs) ranks.push_back({&program, {0}});
    for (const CommOrder order : {CommOrder::kLanes, CommOrder::kList}) {
      const absl::Status status = check_comm(ranks, std::span(&group, 1), order);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

}  // namespace
}  // namespace telar::engine
