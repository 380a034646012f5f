#include "worker/parallel/flat_layout.h"

#include <gmock/gmock.h>

#include <set>

#include "worker/parallel/mesh.h"

namespace telar::parallel {
namespace {

ParameterGroup group(const std::string& name, int64_t rows, int64_t cols, int unit, bool decays,
                     std::vector<Parameter> parts = {}) {
  if (parts.empty()) parts.push_back({name, {rows, cols}, Parameter::Init::kZeros, 0});
  return {name, {rows, cols}, decays, unit, std::move(parts)};
}

std::vector<ParameterGroup> four_units() {
  return {group("embed", 10, 7, 0, true),   group("l0.norm", 1, 7, 1, false), group("l0.w", 7, 7, 1, true),
          group("l1.norm", 1, 7, 2, false), group("l1.w", 7, 7, 2, true),     group("final", 1, 7, 3, false)};
}

TEST(FlatLayout, KeepsUnitsWholeAndInBackwardOrder) {
  const FlatLayout layout(four_units(), 1);  // A bucket a unit.
  ASSERT_EQ(layout.buckets().size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(layout.buckets()[i].last_unit, 3 - i);
  EXPECT_EQ(layout.place(layout.index("l1.w")).bucket, layout.place(layout.index("l1.norm")).bucket);
}

TEST(FlatLayout, ClosesABucketOnceItIsFull) {
  const FlatLayout layout(four_units(), 64 + 1);  // The final norm alone is 64: the next unit joins it.
  ASSERT_EQ(layout.buckets().size(), 3u);
  EXPECT_EQ(layout.buckets()[0].last_unit, 2);
  EXPECT_EQ(layout.buckets()[2].last_unit, 0);
}

TEST(FlatLayout, PutsWhatDecaysFirstAndOverlapsNothing) {
  const FlatLayout layout(four_units(), 1 << 20);
  ASSERT_EQ(layout.buckets().size(), 1u);
  const Bucket& bucket = layout.buckets()[0];
  std::set<int64_t> taken;
  for (size_t i = 0; i < layout.groups().size(); ++i) {
    const ParameterGroup& g = layout.groups()[i];
    const int64_t first = layout.place(i).first;
    EXPECT_EQ(first % FlatLayout::kAlignment, 0) << g.name;
    if (g.decays) {
      EXPECT_LE(first + g.shape.elements(), bucket.decayed) << g.name;
    } else {
      EXPECT_GE(first, bucket.decayed) << g.name;
    }
    for (int64_t e = first; e < first + g.shape.elements(); ++e) EXPECT_TRUE(taken.insert(e).second) << g.name;
  }
  EXPECT_LT(*taken.rbegin(), bucket.elements);
}

TEST(FlatTensors, PartsAreRowRangesOfThePackedTensor) {
  std::vector<ParameterGroup> groups;
  groups.push_back(group("qkv", 8, 6, 0, true,
                         {{"q", {4, 6}, Parameter::Init::kZeros, 0},
                          {"k", {2, 6}, Parameter::Init::kZeros, 0},
                          {"v", {2, 6}, Parameter::Init::kZeros, 0}}));
  const FlatLayout layout(groups, 1);
  engine::Program program;
  const FlatTensors tensors(program, layout, "w", engine::DType::kBF16, engine::MemoryClass::kWeights,
                            FlatTensors::Owner::kProgram);
  const engine::Tensor packed = tensors.group(layout, "qkv");
  EXPECT_EQ(packed.shape(), (engine::Shape{8, 6}));
  EXPECT_EQ(tensors.part(layout, 0, 1).offset(), packed.rows(4, 2).offset());
  EXPECT_EQ(tensors.part(layout, 0, 2).offset(), packed.rows(6, 2).offset());
}

TEST(Mesh, NumbersTensorNeighboursClosest) {
  for (int rank = 0; rank < 24; ++rank) {
    const Mesh mesh = Mesh::of_rank(rank, 3, 4, 2);
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_EQ(((mesh.pp * 3) + mesh.dp) * 2 + mesh.tp, rank);
  }
}

}  // namespace
}  // namespace telar::parallel
