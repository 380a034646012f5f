#include "worker/parallel/flat_layout.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "worker/parallel/flat_tensors.h"
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
  for (int i = 0; i < 4; ++i) EXPECT_THAT(layout.buckets()[i].units, ::testing::ElementsAre(3 - i));
  EXPECT_EQ(layout.place(layout.index("l1.w")).bucket, layout.place(layout.index("l1.norm")).bucket);
}

TEST(FlatLayout, ClosesABucketOnceItIsFull) {
  const FlatLayout layout(four_units(), 7 + 1);  // The final norm alone is 7 elements: the next unit joins it.
  ASSERT_EQ(layout.buckets().size(), 3u);
  EXPECT_THAT(layout.buckets()[0].units, ::testing::ElementsAre(3, 2));
  EXPECT_THAT(layout.buckets()[1].units, ::testing::ElementsAre(1));
  EXPECT_THAT(layout.buckets()[2].units, ::testing::ElementsAre(0));
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

TEST(FlatLayout, GivesATiedTableABucketOfItsOwnAndStartsANewOneWithEachStage) {
  std::vector<ParameterGroup> groups = four_units();
  groups[0].tied = true;
  groups.push_back(group("positions", 3, 7, 0, true));
  const FlatLayout layout(groups, 1 << 20, {}, {0, 0, 1, 1});
  ASSERT_EQ(layout.buckets().size(), 3u);
  EXPECT_THAT(layout.buckets()[0].units, ::testing::ElementsAre(3, 2));
  EXPECT_TRUE(layout.buckets()[1].tied);
  EXPECT_THAT(layout.buckets()[1].units, ::testing::ElementsAre(0));
  EXPECT_EQ(layout.place(layout.index("embed")).bucket, 1);
  EXPECT_EQ(layout.buckets()[1].elements, 128);
  EXPECT_FALSE(layout.buckets()[2].tied);
  EXPECT_THAT(layout.buckets()[2].units, ::testing::ElementsAre(1, 0));
  EXPECT_EQ(layout.place(layout.index("positions")).bucket, 2);
}

// Buckets that all tensor ranks close alike: by what is there, not by what a rank has of it.
TEST(FlatLayout, CountsLogicalElementsWhateverTheSlice) {
  for (const int64_t rows : {7, 1}) {
    std::vector<ParameterGroup> groups = four_units();
    for (ParameterGroup& one : groups) {
      if (!one.decays) continue;
      one.parts[0].extent = std::min(rows, one.parts[0].shape[0]);
      one.shape = one.parts[0].local();
    }
    const FlatLayout layout(groups, 49 + 7 + 7);
    ASSERT_EQ(layout.buckets().size(), 2u) << rows;
    EXPECT_THAT(layout.buckets()[0].units, ::testing::ElementsAre(3, 2));
    EXPECT_THAT(layout.buckets()[1].units, ::testing::ElementsAre(1, 0));
  }
}

TEST(FlatLayout, CutsBucketsIntoEqualShardsThatTileThem) {
  for (const int count : {1, 2, 3, 5, 8}) {
    int64_t end = 0, elements = 0;
    for (int index = 0; index < count; ++index) {
      const FlatLayout layout(four_units(), 1 << 20, {count, index});
      const Range shard = layout.shard(0);
      EXPECT_EQ(shard.first, end);
      EXPECT_EQ(shard.count % FlatLayout::kAlignment, 0) << count;
      EXPECT_EQ(shard.count * count, layout.buckets()[0].elements);
      EXPECT_EQ(layout.whole(0), (Range{0, layout.buckets()[0].elements}));
      end = shard.end();
      elements = layout.buckets()[0].elements;
    }
    EXPECT_EQ(end, elements);
    const int64_t unpadded = FlatLayout(four_units(), 1 << 20).buckets()[0].elements;
    EXPECT_GE(elements, unpadded);
    EXPECT_LT(elements - unpadded, FlatLayout::kAlignment * count);
  }
}

// Elements of all parts that lie in a shard, and nothing else, each where it is stored.
TEST(FlatLayout, PiecesAreWhatTheShardHasOfEachPart) {
  for (const int count : {1, 2, 3, 7}) {
    std::map<std::pair<size_t, size_t>, std::vector<Range>> slices;
    for (int index = 0; index < count; ++index) {
      const FlatLayout layout(four_units(), 40, {count, index});
      for (const Piece& piece : layout.pieces(false)) {
        EXPECT_GT(piece.slice.count, 0);
        const Range shard = layout.shard(static_cast<size_t>(piece.bucket));
        EXPECT_GE(piece.first, shard.first);
        EXPECT_LE(piece.first + piece.slice.count, shard.end());
        EXPECT_EQ(piece.bucket, layout.place(piece.group).bucket);
        EXPECT_EQ(piece.first - piece.slice.first, layout.part_range(piece.group, piece.part).first);
        slices[{piece.group, piece.part}].push_back(piece.slice);
      }
      const std::vector<Piece> whole = layout.pieces(true);
      ASSERT_EQ(whole.size(), layout.groups().size());
      for (const Piece& piece : whole) {
        EXPECT_EQ(piece.slice, (Range{0, layout.groups()[piece.group].parts[piece.part].local().elements()}));
      }
    }
    ASSERT_EQ(slices.size(), four_units().size());
    for (const auto& [part, ranges] : slices) {  // In the order of shards, so of elements.
      int64_t end = 0;
      for (const Range& range : ranges) {
        EXPECT_EQ(range.first, end);
        end = range.end();
      }
      EXPECT_EQ(end, four_units()[part.first].shape.elements());
    }
  }
}

Parameter part(const std::string& name, int64_t rows, Partial partial, bool primary = true) {
  Parameter made{name, {rows, 8}, Parameter::Init::kZeros, 0};
  made.partial = partial;
  made.primary = primary;
  return made;
}

std::vector<ParameterGroup> with_partials() {
  std::vector<ParameterGroup> groups;
  groups.push_back(group("w", 16, 8, 0, true, {part("w", 16, Partial::kNone)}));
  groups.push_back(group("b", 2, 8, 0, false, {part("b", 2, Partial::kNone)}));
  groups.push_back(group("n", 3, 8, 0, false, {part("n", 3, Partial::kTensor, false)}));
  groups.push_back(group("m", 4, 8, 0, false, {part("m", 4, Partial::kTensor, false)}));
  groups.push_back(group("qkv", 6, 8, 0, true,
                         {part("q", 2, Partial::kNone), part("k", 2, Partial::kKeyValue, false),
                          part("v", 2, Partial::kKeyValue, false)}));
  return groups;
}

// Neighbours that are summed over the same group are one range, gaps of alignment included.
TEST(FlatLayout, PutsPartialRangesTogether) {
  const FlatLayout layout(with_partials(), 1);
  ASSERT_EQ(layout.buckets().size(), 1u);
  const std::vector<PartialRange>& partial = layout.buckets()[0].partial;
  ASSERT_EQ(partial.size(), 2u);
  EXPECT_EQ(partial[0].over, Partial::kKeyValue);
  EXPECT_EQ(partial[0].range, (Range{layout.part_range(layout.index("qkv"), 1).first, 4 * 8}));
  EXPECT_EQ(partial[1].over, Partial::kTensor);
  const int64_t first = layout.place(layout.index("n")).first;
  EXPECT_EQ(partial[1].range, (Range{first, layout.part_range(layout.index("m"), 0).end() - first}));
  EXPECT_EQ(layout.part_range(layout.index("m"), 0).first, first + FlatLayout::kAlignment);
}

TEST(FlatLayout, CountsWhatIsPrimaryInItsShardOnly) {
  for (const int count : {1, 2, 4}) {
    std::map<std::string, int64_t> counted;  // By part.
    for (int index = 0; index < count; ++index) {
      const FlatLayout layout(with_partials(), 1, {count, index});
      for (const Range& range : layout.counted(0)) {
        EXPECT_GE(range.first, layout.shard(0).first);
        EXPECT_LE(range.end(), layout.shard(0).end());
        for (size_t g = 0; g < layout.groups().size(); ++g) {
          for (size_t p = 0; p < layout.groups()[g].parts.size(); ++p) {
            const Range own = layout.part_range(g, p);
            const int64_t both = std::min(own.end(), range.end()) - std::max(own.first, range.first);
            if (both > 0) counted[layout.groups()[g].parts[p].name] += both;
          }
        }
      }
    }
    EXPECT_THAT(counted, ::testing::UnorderedElementsAre(::testing::Pair("w", 16 * 8), ::testing::Pair("b", 2 * 8),
                                                         ::testing::Pair("q", 2 * 8)));
  }
}

TEST(FlatTensors, OfShardsAreViewsOfTheWholeOrHaveOnlyThem) {
  const FlatLayout layout(four_units(), 40, {3, 1});
  engine::Program program;
  const auto declare = [&](FlatTensors::Extent extent) {
    return FlatTensors(program, layout, "w", engine::DType::kF32, engine::MemoryClass::kWeights,
                       FlatTensors::Owner::kProgram, extent);
  };
  const FlatTensors whole = declare(FlatTensors::Extent::kWhole), shards = declare(FlatTensors::Extent::kShard);
  const FlatTensors views = whole.shards(layout);
  for (size_t i = 0; i < layout.buckets().size(); ++i) {
    const Range shard = layout.shard(i);
    EXPECT_EQ(whole.buckets()[i].elements(), layout.buckets()[i].elements);
    EXPECT_EQ(shards.buckets()[i].elements(), shard.count);
    EXPECT_EQ(views.buckets()[i].buffer(), whole.buckets()[i].buffer());
    EXPECT_EQ(views.buckets()[i].offset(), static_cast<uint64_t>(shard.first) * 4);
    const Range inner{shard.first + 5, 9};
    EXPECT_EQ(views.range(i, inner).offset(), whole.range(i, inner).offset());
    EXPECT_EQ(shards.range(i, inner).offset(), 5u * 4);
    EXPECT_EQ(shards.range(i, inner).elements(), 9);
  }
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
  const auto part = [&](size_t p) { return tensors.range(0, layout.part_range(0, p)); };
  EXPECT_EQ(part(1).offset(), packed.rows(4, 2).offset());
  EXPECT_EQ(part(2).offset(), packed.rows(6, 2).offset());
  EXPECT_EQ(part(2).bytes(), packed.rows(6, 2).bytes());
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
