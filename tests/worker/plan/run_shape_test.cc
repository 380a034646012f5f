// What all ranks of a job hold, over generated layouts: nothing is lost, nothing counted twice, and those who reduce
// together have buckets that are alike.
#include "worker/plan/run_shape.h"

#include <map>
#include <optional>
#include <set>

#include "tests/worker/plan/layouts.h"
#include "worker/model/parameters.h"

namespace telar::plan {
namespace {

using parallel::Box;
using parallel::Parameter;
using parallel::Partial;
using parallel::Piece;
using parallel::Range;
using parallel::Role;
using ::testing::Each;
using testing::Layout;

// How often something has each element of each logical tensor.
class Times {
 public:
  explicit Times(const v1::ModelSpec& model) {
    for (const auto& group : model::parameter_groups(model)) {
      for (const Parameter& part : group.parts) times_[part.name].assign(static_cast<size_t>(part.shape.elements()), 0);
    }
  }
  void add(const Parameter& parameter, const Range& slice) {
    std::vector<int>& times = times_.at(parameter.name);
    const int64_t columns = parameter.shape.rank() == 1 ? 1 : parameter.shape[1];
    for (const Box& box : parallel::boxes(parameter, slice.first, slice.count)) {
      const bool flat = box.offset.size() == 1;
      for (int64_t row = box.offset[0]; row < box.offset[0] + box.extent[0]; ++row) {
        for (int64_t c = 0; c < (flat ? 1 : box.extent[1]); ++c) {
          ++times[static_cast<size_t>(row * columns + (flat ? 0 : box.offset[1] + c))];
        }
      }
    }
  }
  void expect_once() const {
    for (const auto& [name, times] : times_) {
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), static_cast<int64_t>(times.size())) << name;
    }
  }

 private:
  std::map<std::string, std::vector<int>> times_;
};

class RunShapeTest : public ::testing::Test {
 protected:
  template <typename Body>
  static void for_each_layout(Body body) {
    std::vector<Layout> layouts = testing::generated_layouts(150, 1, 32);
    for (const uint32_t tensor : {1u, 2u, 4u, 8u}) {  // Fewer key-value heads than ranks, tied across stages, hybrid.
      for (const uint32_t zero : {0u, 3u}) {
        layouts.push_back({"llama_tied", tensor, 2, 4, zero, zero == 0 ? 0u : 2u, "1f1b", 1});
      }
    }
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(to_text(layout));
      const v1::JobSpec spec = testing::spec_of(layout);
      for (const int64_t bucket_elements : {int64_t{1}, int64_t{20000}}) {
        body(spec, testing::shapes_of(spec, bucket_elements));
      }
      if (HasFailure()) return;
    }
  }
};

// One sum over all ranks of what each counts has each logical element once: norms.
TEST_F(RunShapeTest, CountsEachLogicalElementOnce) {
  for_each_layout([](const v1::JobSpec& spec, const std::vector<RunShape>& shapes) {
    Times times(spec.model());
    for (const RunShape& shape : shapes) {
      if (shape.groups.rank(Role::kReplicate) > 0) continue;  // As the optimizer: the first of the copies counts.
      const parallel::FlatLayout& layout = shape.layout;
      for (size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
        for (const Range& counted : layout.counted(bucket)) {
          for (size_t g = 0; g < layout.groups().size(); ++g) {
            if (layout.place(g).bucket != static_cast<int>(bucket)) continue;
            for (size_t p = 0; p < layout.groups()[g].parts.size(); ++p) {
              const Range own = layout.part_range(g, p);
              const int64_t first = std::max(own.first, counted.first), end = std::min(own.end(), counted.end());
              if (first < end) times.add(layout.groups()[g].parts[p], {first - own.first, end - first});
            }
          }
        }
      }
    }
    times.expect_once();
  });
}

// What is saved of primaries, whoever of the replicas has it, is the whole model.
TEST_F(RunShapeTest, PiecesOfPrimariesAreTheWholeModel) {
  for_each_layout([](const v1::JobSpec& spec, const std::vector<RunShape>& shapes) {
    Times times(spec.model());
    for (const RunShape& shape : shapes) {
      const int copy = shape.sharded() ? shape.groups.rank(Role::kReplicate) : shape.mesh.dp;
      if (copy > 0) continue;
      for (const Piece& piece : shape.pieces()) {
        const Parameter& parameter = shape.layout.groups()[piece.group].parts[piece.part];
        if (parameter.primary) times.add(parameter, piece.slice);
      }
    }
    times.expect_once();
  });
}

TEST_F(RunShapeTest, ThoseWhoReduceTogetherHaveTheSameBuckets) {
  for_each_layout([](const v1::JobSpec&, const std::vector<RunShape>& shapes) {
    for (const RunShape& shape : shapes) {
      for (const Role role : {Role::kShard, Role::kGather, Role::kReplicate}) {
        if (shape.groups.size(role) == 1) continue;
        for (const int member : shape.groups.list()[shape.groups.id(role)].ranks) {
          const parallel::FlatLayout& mine = shape.layout;
          const parallel::FlatLayout& other = shapes[static_cast<size_t>(member)].layout;
          ASSERT_EQ(mine.buckets().size(), other.buckets().size());
          for (size_t i = 0; i < mine.buckets().size(); ++i) {
            EXPECT_EQ(mine.buckets()[i].elements, other.buckets()[i].elements);
            EXPECT_EQ(mine.buckets()[i].units, other.buckets()[i].units);
            EXPECT_EQ(mine.shard(i).count, other.shard(i).count);
            // Across shard groups the same shard, within one another.
            EXPECT_EQ(role == Role::kReplicate || member == shape.mesh.rank(),
                      mine.shard(i).first == other.shard(i).first);
          }
        }
      }
    }
  });
}

// By bucket: how many elements each range has that is summed over the role.
std::vector<std::vector<int64_t>> partial_sizes(const RunShape& shape, Partial over) {
  std::vector<std::vector<int64_t>> sizes;
  for (const parallel::Bucket& bucket : shape.layout.buckets()) {
    sizes.emplace_back();
    for (const parallel::PartialRange& partial : bucket.partial) {
      if (partial.over == over) sizes.back().push_back(partial.range.count);
    }
  }
  return sizes;
}

TEST_F(RunShapeTest, TensorRanksSumTheSameRangesOfTheSameBuckets) {
  int compared = 0;
  for_each_layout([&](const v1::JobSpec&, const std::vector<RunShape>& shapes) {
    for (const RunShape& shape : shapes) {
      for (const auto& [role, over] :
           {std::pair(Role::kTensor, Partial::kTensor), std::pair(Role::kKeyValue, Partial::kKeyValue)}) {
        if (shape.groups.size(role) == 1) continue;
        const auto sizes = partial_sizes(shape, over);
        for (const int member : shape.groups.list()[shape.groups.id(role)].ranks) {
          const RunShape& other = shapes[static_cast<size_t>(member)];
          EXPECT_EQ(sizes, partial_sizes(other, over)) << shape.mesh.rank() << " and " << member;
          ASSERT_EQ(shape.layout.buckets().size(), other.layout.buckets().size());
          for (size_t i = 0; i < sizes.size(); ++i) {
            EXPECT_EQ(shape.layout.buckets()[i].units, other.layout.buckets()[i].units);
          }
          compared += static_cast<int>(role == Role::kKeyValue && member != shape.mesh.rank() && !sizes[0].empty());
        }
      }
      // Where nobody holds the other summands, there are none.
      if (shape.mesh.tp_size > 1) continue;
      EXPECT_THAT(partial_sizes(shape, Partial::kTensor), Each(::testing::IsEmpty()));
    }
  });
  EXPECT_GT(compared, 0) << "no layout shares key-value heads";
}

TEST_F(RunShapeTest, TheTiedTableIsAloneAndAlikeOnBothItsStages) {
  int found = 0;
  for_each_layout([&](const v1::JobSpec& spec, const std::vector<RunShape>& shapes) {
    const auto tied = [](const RunShape& shape) -> std::optional<int64_t> {
      std::optional<int64_t> elements;
      for (const parallel::Bucket& bucket : shape.layout.buckets()) {
        if (!bucket.tied) continue;
        EXPECT_FALSE(elements.has_value()) << "two of rank " << shape.mesh.rank();
        elements = bucket.elements;
      }
      return elements;
    };
    for (const RunShape& shape : shapes) {
      const bool across = spec.model().tied_head() && shape.rank_of_stage.front() != shape.rank_of_stage.back();
      EXPECT_EQ(tied(shape).has_value(), across && (shape.has_stage(0) || shape.has_head())) << shape.mesh.rank();
      if (shape.groups.size(Role::kTied) == 1) continue;
      for (const int member : shape.groups.list()[shape.groups.id(Role::kTied)].ranks) {
        EXPECT_EQ(tied(shape), tied(shapes[static_cast<size_t>(member)]));
        ++found;
      }
    }
  });
  EXPECT_GT(found, 0);
}

// A bucket is reduced when its last unit is done: none reaches over two stages, which are done at different times.
TEST_F(RunShapeTest, BucketsAreOfOneStage) {
  for_each_layout([](const v1::JobSpec&, const std::vector<RunShape>& shapes) {
    for (const RunShape& shape : shapes) {
      for (const parallel::Bucket& bucket : shape.layout.buckets()) {
        std::set<size_t> stages;
        for (const int unit : bucket.units) {
          for (size_t s = 0; s < shape.stages.size(); ++s) {
            const parallel::Stage& stage = shape.stages[s];
            const bool has = (unit == 0 && stage.embedding) ||
                             (unit == static_cast<int>(shape.spec.model().layers()) + 1 && stage.head) ||
                             (unit > stage.first_layer && unit <= stage.first_layer + stage.layers);
            if (has) stages.insert(s);
          }
        }
        EXPECT_EQ(stages.size(), 1u);
        EXPECT_TRUE(shape.has_stage(static_cast<int>(*stages.begin())));
        EXPECT_TRUE(std::is_sorted(bucket.units.rbegin(), bucket.units.rend()));
      }
    }
  });
}

}  // namespace
}  // namespace telar::plan
