// The programs of all ranks of a job, recorded and planned without a device: each can be planned, and together they
// make the same calls, so that no timing makes ranks wait for each other forever.
#include "tests/worker/plan/layouts.h"

#include <map>
#include <memory>

#include "worker/engine/comm_check.h"
#include "worker/engine/plan.h"
#include "worker/plan/programs.h"

namespace telar::plan {
namespace {

using testing::Layout;

constexpr int kParts = 16, kLayoutsAPart = 20;

// The programs of a job as engine::check_comm() takes them.
template <typename Recorded>
struct Job {
  Job(const std::vector<RunShape>& shapes, const std::vector<std::unique_ptr<Recorded>>& recorded) {
    std::map<std::string, size_t> places;
    for (size_t rank = 0; rank < shapes.size(); ++rank) {
      ranks.push_back({&recorded[rank]->program, {}});
      for (const backend::Group& group : shapes[rank].groups.list()) {
        const auto [at, first] = places.try_emplace(group.name, groups.size());
        if (first) groups.push_back({group.name, {group.ranks.begin(), group.ranks.end()}});
        ranks.back().groups.push_back(at->second);
      }
    }
  }
  absl::Status check(engine::CommOrder order) const { return engine::check_comm(ranks, groups, order); }

  std::vector<engine::CommGroup> groups;
  std::vector<engine::RankProgram> ranks;
};

template <typename Recorded>
void expect_fits(const std::vector<RunShape>& shapes, const std::vector<std::unique_ptr<Recorded>>& recorded) {
  for (size_t rank = 0; rank < shapes.size(); ++rank) {
    const auto plan = engine::plan(recorded[rank]->program);
    EXPECT_TRUE(plan.ok()) << "rank " << rank << ": " << plan.status();
  }
  const Job<Recorded> job(shapes, recorded);
  for (const auto order : {engine::CommOrder::kLanes, engine::CommOrder::kList}) {
    const absl::Status status = job.check(order);
    EXPECT_TRUE(status.ok()) << (order == engine::CommOrder::kLanes ? "lanes: " : "list: ") << status;
  }
}

template <typename Record>
auto record_all(const std::vector<RunShape>& shapes, Record record) {
  std::vector<decltype(record(shapes[0]))> all;
  for (const RunShape& shape : shapes) all.push_back(record(shape));
  return all;
}

class GeneratedLayoutsTest : public ::testing::TestWithParam<int> {};

TEST_P(GeneratedLayoutsTest, AllRanksProgramsFitTogether) {
  for (const Layout& layout : testing::generated_layouts(kLayoutsAPart, 100 + static_cast<uint32_t>(GetParam()))) {
    SCOPED_TRACE(to_text(layout));
    std::vector<RunShape> shapes = testing::shapes_of(testing::spec_of(layout), 20000);
    for (RunShape& shape : shapes) shape.logits_bytes = 64 * 16 * 4;  // Several chunks of the head.
    {
      SCOPED_TRACE("training");
      expect_fits(shapes, record_all(shapes, record_train));
    }
    {
      SCOPED_TRACE("evaluation");
      expect_fits(shapes, record_all(shapes, record_eval));
    }
    SCOPED_TRACE("logits");
    expect_fits(shapes, record_all(shapes, record_logits));
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, GeneratedLayoutsTest, ::testing::Range(0, kParts));

// What the check must find: a rank that does without one of its transfers.
TEST(LayoutsTest, ARankThatLacksACallIsFound) {
  std::vector<RunShape> shapes =
      testing::shapes_of(testing::spec_of({.tensor = 2, .pipeline = 2, .data = 2, .zero = 3}), 20000);
  const auto check = [&] {
    const auto recorded = record_all(shapes, record_train);
    return Job<TrainProgram>(shapes, recorded).check(engine::CommOrder::kLanes);
  };
  EXPECT_TRUE(check().ok());
  std::vector<parallel::Action>& actions = shapes[3].actions;
  const auto sends = [](const parallel::Action& one) { return one.kind == parallel::ActionKind::kSendForward; };
  actions.erase(std::find_if(actions.begin(), actions.end(), sends));
  EXPECT_EQ(check().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace telar::plan
