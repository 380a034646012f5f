#include "worker/engine/graph.h"

#include <gmock/gmock.h>

#include "tests/worker/engine/testing.h"

namespace telar::engine {
namespace {

using backend::AccessMode;
using testing::comm_lane;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kComputeLane;
using testing::make_access;
using testing::mix;
using testing::persistent;
using testing::read;
using testing::transient;
using testing::update;
using testing::write;

// "0 RAW" for each edge into `op`.
std::vector<std::string> edges_into(const Graph& graph, OpId op) {
  std::vector<std::string> text;
  for (const Edge& edge : graph[op]) text.push_back(std::to_string(edge.from) + " " + edge_kinds_to_string(edge.kinds));
  return text;
}

Graph built(const Program& program) {
  absl::StatusOr<Graph> graph = build_graph(program);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? *std::move(graph) : Graph(program.ops().size());
}

TEST(GraphTest, ReadersFollowTheLastWriterAndWritersTheReaders) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  mix(program, "w0", kComputeLane, {write(x)});
  mix(program, "r1", kComputeLane, {read(x)});
  mix(program, "r2", kComputeLane, {read(x)});
  mix(program, "w3", kComputeLane, {write(x)});
  mix(program, "w4", kComputeLane, {write(x)});
  mix(program, "u5", kComputeLane, {update(x)});
  const Graph graph = built(program);
  EXPECT_THAT(edges_into(graph, 0), ElementsAre());
  EXPECT_THAT(edges_into(graph, 1), ElementsAre("0 RAW"));
  EXPECT_THAT(edges_into(graph, 2), ElementsAre("0 RAW"));
  EXPECT_THAT(edges_into(graph, 3), ElementsAre("1 WAR", "2 WAR"));  // And not 0: the readers imply it.
  EXPECT_THAT(edges_into(graph, 4), ElementsAre("3 WAW"));
  EXPECT_THAT(edges_into(graph, 5), ElementsAre("4 RAW+WAW"));
}

TEST(GraphTest, ReadersBeforeAnyWriterHoldBackTheFirstWriter) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  mix(program, "r0", kComputeLane, {read(x)});
  mix(program, "w1", kComputeLane, {write(x)});
  EXPECT_THAT(edges_into(built(program), 1), ElementsAre("0 WAR"));
}

TEST(GraphTest, OnlyOverlappingBytesMakeEdges) {
  Program program;
  const Tensor x = persistent(program, "x", 100);
  mix(program, "left", kComputeLane, {make_access(x, 0, 50, AccessMode::kWrite)});
  mix(program, "right", kComputeLane, {make_access(x, 50, 100, AccessMode::kWrite)});
  mix(program, "middle", kComputeLane, {make_access(x, 40, 60, AccessMode::kRead)});
  mix(program, "left2", kComputeLane, {make_access(x, 0, 40, AccessMode::kWrite)});
  mix(program, "left3", kComputeLane, {make_access(x, 39, 41, AccessMode::kWrite)});
  mix(program, "none", kComputeLane, {make_access(x, 40, 40, AccessMode::kWrite)});
  const Graph graph = built(program);
  EXPECT_THAT(edges_into(graph, 1), ElementsAre());
  EXPECT_THAT(edges_into(graph, 2), ElementsAre("0 RAW", "1 RAW"));
  EXPECT_THAT(edges_into(graph, 3), ElementsAre("0 WAW"));
  EXPECT_THAT(edges_into(graph, 4), ElementsAre("2 WAR", "3 WAW"));
  EXPECT_THAT(edges_into(graph, 5), ElementsAre());
}

TEST(GraphTest, AnOpMayReadAndWriteTheSameBytesThroughTwoArguments) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  mix(program, "w0", kComputeLane, {write(x)});
  mix(program, "in place", kComputeLane, {write(x), read(x)});
  mix(program, "r2", kComputeLane, {read(x)});
  const Graph graph = built(program);
  EXPECT_THAT(edges_into(graph, 1), ElementsAre("0 RAW+WAW"));
  EXPECT_THAT(edges_into(graph, 2), ElementsAre("1 RAW"));
}

TEST(GraphTest, OneEdgeFromEachOp) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  const Tensor y = persistent(program, "y", 8);
  mix(program, "a", kComputeLane, {write(x), write(y)});
  mix(program, "b", kComputeLane, {read(x), write(y)});
  EXPECT_THAT(edges_into(built(program), 1), ElementsAre("0 RAW+WAW"));
}

TEST(GraphTest, RefusesReadsOfTransientBytesThatNobodyWrote) {
  Program program;
  const Tensor x = transient(program, "x", 100);
  mix(program, "half", kComputeLane, {make_access(x, 0, 50, AccessMode::kWrite)});
  mix(program, "sum", kComputeLane, {make_access(x, 10, 70, AccessMode::kReadWrite)});
  const absl::Status status = build_graph(program).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("op 'sum' reads byte 50 of transient 'x'"));
}

TEST(GraphTest, RefusesAccessesOutsideOfTheirBuffer) {
  Program program;
  const Tensor x = persistent(program, "x", 100);
  mix(program, "far", kComputeLane, {{x.buffer(), 90, 101, AccessMode::kRead}});
  EXPECT_THAT(std::string(build_graph(program).status().message()), HasSubstr("[90, 101) of 'x', which has 100"));
  Program other;
  mix(other, "lost", kComputeLane, {{7, 0, 1, AccessMode::kRead}});
  EXPECT_THAT(std::string(build_graph(other).status().message()), HasSubstr("buffer number 7"));
}

TEST(GraphTest, PlacedBuffersThatShareBytesMakeReuseEdges) {
  Program program;
  const Tensor a = transient(program, "a", 256);
  const Tensor b = transient(program, "b", 512);
  mix(program, "a.write", kComputeLane, {write(a)});
  mix(program, "a.read", kComputeLane, {read(a)});
  mix(program, "b.write", kComputeLane, {write(b)});
  EXPECT_THAT(edges_into(build_placed_graph(program, {0, 256}), 2), ElementsAre());
  EXPECT_THAT(edges_into(build_placed_graph(program, {256, 0}), 2), ElementsAre("1 reuse"));
}

TEST(GraphTest, PlacedGraphKeepsTheOrderOfEachCommunicator) {
  Program program;
  const Tensor x = persistent(program, "x", 8);
  const Tensor y = persistent(program, "y", 8);
  const Tensor z = persistent(program, "z", 8);
  mix(program, "x", comm_lane(0), {write(x)});
  mix(program, "y", comm_lane(1), {write(y)});
  mix(program, "z", comm_lane(0), {write(z)});
  mix(program, "x again", comm_lane(0), {read(x), read(z)});
  const Graph graph = build_placed_graph(program, {0, 256, 512});
  EXPECT_THAT(edges_into(graph, 1), ElementsAre());
  EXPECT_THAT(edges_into(graph, 2), ElementsAre("0 issue"));
  EXPECT_THAT(edges_into(graph, 3), ElementsAre("0 RAW", "2 RAW+issue"));
}

}  // namespace
}  // namespace telar::engine
