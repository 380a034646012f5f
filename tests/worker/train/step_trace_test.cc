// Steps that are timed op by op: by whose wish, on whose clock, and at what cost.
#include "worker/train/step_trace.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/fakes/device.h"
#include "tests/fakes/fake_clock.h"
#include "tests/worker/train/tiny.h"
#include "worker/backend/cpu/cpu.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ClockOffsetTest, TheShortestWaySaysItBest) {
  EXPECT_FALSE(best_offset({}).has_value());
  // The other clock is 5 s ahead. Ways of 3 + 1, 0.2 + 0.1, and 0.1 + 2 s; the answer takes 1 s.
  const std::vector<ClockExchange> exchanges = {{10, 15, 18, 19}, {20, 21.3, 25.2, 26.2}, {30, 33.1, 35.1, 36.1}};
  const auto best = best_offset(exchanges);
  ASSERT_TRUE(best.has_value());
  EXPECT_NEAR(best->offset, 5.05, 1e-9);
  EXPECT_NEAR(best->error, 0.15, 1e-9);
}

// A clock that takes its time to answer, and stands `ahead`.
class SlowReference final : public ReferenceClock {
 public:
  explicit SlowReference(fakes::FakeClock& clock) : clock_(clock) {}
  absl::StatusOr<Answer> ask(milliseconds) override {
    if (asked++ == fails_at) return absl::UnavailableError("gone");
    clock_.advance(milliseconds(2 + 3 * (asked % 4)));
    Answer answer{asked >= other_from ? "another" : "one", seconds_of(clock_.now()) + ahead, 0};
    clock_.advance(milliseconds(1));
    answer.replied = seconds_of(clock_.now()) + ahead;
    clock_.advance(milliseconds(4));
    return answer;
  }
  int asked = 0, fails_at = 1000, other_from = 1000;
  double ahead = -7;

 private:
  fakes::FakeClock& clock_;
};

TEST(ClockOffsetTest, IsMeasuredToHalfARoundTrip) {
  fakes::FakeClock clock;
  SlowReference reference(clock);
  const auto offset = measure_offset(reference, clock);
  ASSERT_TRUE(offset.has_value());
  EXPECT_EQ(offset->reference, "one");
  EXPECT_NEAR(offset->error, 0.003, 1e-9);
  EXPECT_NEAR(offset->offset, -7, offset->error + 1e-9);
}

TEST(ClockOffsetTest, WithoutAnswersOrWithThoseOfTwoThereIsNone) {
  fakes::FakeClock clock;
  SlowReference gone(clock), two(clock), some(clock);
  gone.fails_at = 0;
  EXPECT_FALSE(measure_offset(gone, clock).has_value());
  two.other_from = 3;
  EXPECT_FALSE(measure_offset(two, clock).has_value());
  some.fails_at = 3;
  EXPECT_TRUE(measure_offset(some, clock).has_value());
}

class StepTraceTest : public ::testing::Test {
 protected:
  StepTraceTest() {
    char name[] = "/tmp/telar_step_trace_test_XXXXXX";
    root_ = mkdtemp(name);
    *plan_.mutable_spec() = testing::tiny_spec();
    plan_.mutable_spec()->mutable_trace()->set_account_every(1);
    plan_.set_world_size(1);
    plan_.set_run_dir(root_.string());
    plan::RunShape shape = plan::run_shape(plan_.spec(), mesh_);
    replica_ = Replica::create(std::move(shape), device_, {}, Replica::Execution::kLanes).value();
    EXPECT_TRUE(replica_->init().ok());
  }
  ~StepTraceTest() override { fs::remove_all(root_); }

  StepTrace make() { return StepTrace(plan_, mesh_, groups_, {.wishes_path = (root_ / "wishes.json").string()}); }
  void wish(const std::string& steps) {
    std::ofstream(root_ / "wishes.new") << "{\"trace_steps\": [" << steps << "]}\n";
    fs::rename(root_ / "wishes.new", root_ / "wishes.json");
  }
  void take_steps(StepTrace& trace, uint64_t first, uint64_t last) {
    for (uint64_t step = first; step <= last; ++step) {
      ASSERT_TRUE(trace.begin(step, *replica_, device_).ok());
      ASSERT_TRUE(testing::submit(*replica_, step).ok());
      ASSERT_TRUE(replica_->finish_step().ok());
      const auto told = trace.finish(step, *replica_);
      ASSERT_TRUE(told.ok()) << told.status();
      accounts_ += told->has_value() ? 1 : 0;
    }
  }
  bool there(uint64_t step) const { return fs::exists(root_ / absl::StrCat("traces/rank-0/trace-", step, ".json")); }
  static std::vector<std::string> in_words(const std::vector<v1::TraceReport>& reports) {
    std::vector<std::string> words;
    for (const v1::TraceReport& one : reports) {
      words.push_back(absl::StrCat(one.step(), " ", v1::TraceReport::State_Name(one.state()), " ", one.at_step()));
    }
    return words;
  }

  fs::path root_;
  v1::RankPlan plan_;
  const parallel::Mesh mesh_ = parallel::Mesh::of_rank(0, 1, 1, 1);
  const std::vector<parallel::Group> groups_;
  fakes::FakeDevice device_{backend::cpu::create_device({}, backend::cpu::create_kernels(), nullptr)};
  std::unique_ptr<Replica> replica_;
  int accounts_ = 0;
};

// Events of a device are made with the first step that is timed, and never again.
TEST_F(StepTraceTest, TimingAStepMakesNothingOnTheDevice) {
  StepTrace trace = make();
  trace.observe_from(0);
  take_steps(trace, 1, 5);
  EXPECT_EQ(accounts_, 2);
  const int events = device_.counts.timed_events, allocations = device_.counts.allocations;
  EXPECT_GT(events, 100);
  take_steps(trace, 6, 20);
  EXPECT_EQ(accounts_, 17);
  EXPECT_EQ(device_.counts.timed_events, events);
  EXPECT_EQ(device_.counts.allocations, allocations);
}

TEST_F(StepTraceTest, WishesAreFulfilledWhereTheyComeInTime) {
  StepTrace trace = make();
  trace.observe_from(0);
  take_steps(trace, 1, 2);
  EXPECT_THAT(in_words(trace.take_reports()), IsEmpty());
  wish("2, 4, 6");
  take_steps(trace, 3, 5);
  EXPECT_THAT(in_words(trace.take_reports()), ElementsAre("2 MISSED 3", "4 RECORDED 5"));
  wish("4, 6, 7");  // What was answered is not answered again.
  take_steps(trace, 6, 8);
  EXPECT_THAT(in_words(trace.take_reports()), ElementsAre("6 RECORDED 7", "7 RECORDED 8"));
  EXPECT_TRUE(there(4) && there(6) && there(7));
  EXPECT_FALSE(there(2) || there(5) || there(8));
}

TEST_F(StepTraceTest, AWishThatCannotBeReadOrWrittenEndsNothing) {
  StepTrace trace = make();
  trace.observe_from(0);
  std::ofstream(root_ / "wishes.json") << "[oops";
  take_steps(trace, 1, 1);
  EXPECT_THAT(in_words(trace.take_reports()), IsEmpty());
  std::ofstream(root_ / "traces") << "in the way";
  wish("2");
  take_steps(trace, 2, 2);
  const auto reports = trace.take_reports();
  EXPECT_THAT(in_words(reports), ElementsAre("2 MISSED 3"));
  EXPECT_THAT(reports[0].message(), HasSubstr("cannot write"));
}

TEST_F(StepTraceTest, AnExecutorThatCannotBeObservedSaysSo) {
  StepTrace trace = make();  // Nobody called observe_from().
  wish("2");
  take_steps(trace, 1, 2);
  EXPECT_THAT(in_words(trace.take_reports()), ElementsAre("2 MISSED 2"));
}

}  // namespace
}  // namespace telar::train
