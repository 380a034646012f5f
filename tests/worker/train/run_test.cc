// One rank, run in this process from a RankPlan: its steps, how it stops, and how it fails.
#include "tests/worker/train/run_fixture.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read;
using testing::RunTest;

TEST_F(RunTest, LearnsAndLeavesItsResults) {
  v1::RankPlan made = plan("a", 60);
  made.mutable_spec()->mutable_sample()->set_prompt("It was");
  made.mutable_spec()->mutable_sample()->set_tokens(8);
  const auto outcome = run_plan(made);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->step, 60u);
  EXPECT_FALSE(outcome->interrupted);
  const std::vector<std::string> curve = losses("a");
  ASSERT_EQ(curve.size(), 60u);
  const auto value = [](const std::string& line) { return std::stod(line.substr(line.find(' '))); };
  EXPECT_LT(value(curve.back()), 0.6 * value(curve.front()));
  EXPECT_THAT(read(root_ / "a" / "sample.txt"), ::testing::StartsWith("It was"));
  EXPECT_TRUE(fs::exists(shard("a", "00000060")));
  EXPECT_FALSE(fs::exists(shard("a", "00000030")));  // keep: 3
  EXPECT_THAT(read(root_ / "events.jsonl"), HasSubstr("\"finished\""));
}

// Stopped behind some step, whichever it was, and taken up again: the same bits as never stopped.
TEST_F(RunTest, AResumedRunEqualsTheUnbrokenOneBitForBit) {
  ASSERT_TRUE(run_plan(plan("unbroken", 40)).ok());
  ASSERT_NO_FATAL_FAILURE(run_and_stop(plan("broken", 40)));
  ASSERT_TRUE(run_plan(plan("broken", 40)).ok());
  EXPECT_EQ(losses("broken"), losses("unbroken"));
  EXPECT_EQ(read(shard("broken", "00000040")), read(shard("unbroken", "00000040")));
}

// As above where the loss scale comes down from far too high and grows again all the time: it, its counts and Adam's
// step are state too.
TEST_F(RunTest, AResumedFp16RunEqualsTheUnbrokenOneBitForBit) {
  const auto fp16 = [&](const std::string& run_dir) {
    v1::RankPlan made = plan(run_dir, 40);
    v1::PrecisionSpec& precision = *made.mutable_spec()->mutable_precision();
    precision.set_compute(v1::FP16);
    precision.mutable_loss_scale()->set_initial(16777216);
    precision.mutable_loss_scale()->set_growth_interval(4);
    EXPECT_THAT(plan::resolve(*made.mutable_spec(), v1::ResourceSpec::CPU), IsEmpty());
    return made;
  };
  ASSERT_TRUE(run_plan(fp16("unbroken")).ok());
  ASSERT_NO_FATAL_FAILURE(run_and_stop(fp16("broken")));
  ASSERT_TRUE(run_plan(fp16("broken")).ok());
  EXPECT_EQ(losses("broken"), losses("unbroken"));
  EXPECT_EQ(column("broken", "loss_scale"), column("unbroken", "loss_scale"));
  EXPECT_EQ(column("broken", "skipped"), column("unbroken", "skipped"));
  EXPECT_TRUE(read(shard("broken", "00000040")) == read(shard("unbroken", "00000040")));
  const nlohmann::json saved = manifest("broken", "00000040")["optimizer"];
  EXPECT_EQ(saved, manifest("unbroken", "00000040")["optimizer"]);
  const auto skipped = column("unbroken", "skipped");
  const auto skips = static_cast<uint64_t>(std::count(skipped.begin(), skipped.end(), "true"));
  EXPECT_GT(skips, 2u);
  EXPECT_EQ(saved["skipped_steps"], skips);
  EXPECT_EQ(saved["applied_steps"], 40 - skips);
  EXPECT_EQ(saved["loss_scale"].dump(), column("unbroken", "loss_scale").back());
}

TEST_F(RunTest, GivesUpWhereTheLossScaleIsLeastAndStillTooLarge) {
  v1::RankPlan made = plan("a", 40);
  v1::PrecisionSpec& precision = *made.mutable_spec()->mutable_precision();
  precision.set_compute(v1::FP16);
  precision.mutable_loss_scale()->set_max(1073741824);
  precision.mutable_loss_scale()->set_initial(1073741824);
  precision.mutable_loss_scale()->set_min(67108864);
  EXPECT_THAT(plan::resolve(*made.mutable_spec(), v1::ResourceSpec::CPU), IsEmpty());
  const auto outcome = run_plan(made);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(class_of(outcome.status()), v1::NUMERIC) << outcome.status();
  // Three steps on the way down, then ten.
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("10 steps in a row, up to step 13"));
}

// The step that brings the wish to stop back has the next one behind it already, unless something is due in between.
TEST_F(RunTest, StopsBehindTheStepsInFlight) {
  const auto free = stop_at_first_step(plan("free", 40));
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ(free->step, 2u);
  EXPECT_TRUE(free->interrupted);
  EXPECT_TRUE(fs::exists(shard("free", "00000002")));
  EXPECT_EQ(losses("free").size(), 2u);
  v1::RankPlan bound = plan("bound", 40);
  bound.mutable_spec()->mutable_checkpoint()->set_every_steps(1);
  EXPECT_EQ(stop_at_first_step(bound)->step, 1u);
  EXPECT_EQ(durable_saves(), 2u) << "what is saved is not saved again";
}

// Not without its evaluation, which the next start makes.
TEST_F(RunTest, AStopInTheLastStepLeavesARunThatIsNotOver) {
  const auto stopped = stop_at_first_step(plan("a", 2));
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->step, 2u);
  EXPECT_TRUE(stopped->interrupted);
  EXPECT_THAT(events("eval"), IsEmpty());
  EXPECT_FALSE(manifest("a", "00000002").contains("eval_loss"));
  const auto over = run_plan(plan("a", 2));
  ASSERT_TRUE(over.ok()) << over.status();
  EXPECT_FALSE(over->interrupted);
  EXPECT_EQ(events("eval").size(), 1u);
  EXPECT_EQ(losses("a").size(), 2u);
}

TEST_F(RunTest, AStopBeforeTheFirstStepHasNothingToSave) {
  const std::atomic<bool> stop{true};
  const auto fresh = run_plan(plan("a", 40), stop);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ(fresh->step, 0u);
  EXPECT_TRUE(fresh->interrupted);
  EXPECT_FALSE(fs::exists(root_ / "a" / "ckpt"));
  ASSERT_TRUE(run_plan(plan("a", 10)).ok());
  const size_t saves = events("checkpoint").size();
  const auto resumed = run_plan(plan("a", 40), stop);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->step, 10u);
  EXPECT_TRUE(resumed->interrupted);
  EXPECT_EQ(events("checkpoint").size(), saves);
}

TEST_F(RunTest, KeepsWhatTheSpecWants) {
  v1::RankPlan made = plan("a", 60);
  made.mutable_spec()->mutable_checkpoint()->set_keep(1);
  made.mutable_spec()->mutable_checkpoint()->set_keep_every(40);
  made.mutable_spec()->mutable_checkpoint()->set_keep_best(1);
  made.mutable_spec()->mutable_eval()->set_every_steps(20);
  made.mutable_spec()->mutable_optimizer()->set_learning_rate(0.2);  // So that the last one is not the best.
  ASSERT_TRUE(run_plan(made).ok());
  std::map<uint64_t, double> evals;
  for (const auto& eval : events("eval")) evals[std::stoull(eval["step"].get<std::string>())] = eval["loss"];
  ASSERT_EQ(evals.size(), 3u);
  const auto best = std::min_element(evals.begin(), evals.end(), [](auto& a, auto& b) { return a.second < b.second; });
  std::set<uint64_t> stay;
  for (const auto& entry : fs::directory_iterator(root_ / "a" / "ckpt")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) stay.insert(std::stoull(name.substr(5)));
  }
  EXPECT_EQ(stay, (std::set<uint64_t>{best->first, 40, 60}));
  for (const uint64_t step : {uint64_t{40}, uint64_t{60}}) {
    EXPECT_EQ(manifest("a", "000000" + std::to_string(step))["eval_loss"], evals[step]);
  }
  std::set<std::string> removed;
  for (const auto& saved : events("checkpoint")) {
    for (const auto& path : saved.value("removed", nlohmann::json::array())) removed.insert(path.get<std::string>());
  }
  EXPECT_EQ(removed.size(), 6 - stay.size());
}

TEST_F(RunTest, OneRankThatIsAskedToStopStopsAllBehindTheSameStep) {
  const fakes::FakeRendezvous rendezvous;
  const auto run_two = [&](uint64_t steps, const std::atomic<bool>& stop_second) {
    const v1::RankPlan both = plan("gang", steps);
    absl::StatusOr<RunOutcome> first = absl::UnknownError("not run"), second = first;
    std::thread peer([&] { second = run_plan(plan_of_two(both, 1, rendezvous), stop_second); });
    first = run_plan(plan_of_two(both, 0, rendezvous));
    peer.join();
    EXPECT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(first->step, second->step);
    EXPECT_EQ(first->interrupted, second->interrupted);
    return *first;
  };
  std::atomic<bool> stop{false};
  std::thread stopper([&] {
    while (losses("gang").size() < 5) std::this_thread::yield();
    stop = true;
  });
  const RunOutcome broken = run_two(40, stop);
  stopper.join();
  ASSERT_TRUE(broken.interrupted) << "too fast to be stopped";
  EXPECT_EQ(run_two(40, kGoOn).step, 40u);
  const std::vector<std::string> resumed = losses("gang");
  fs::remove_all(root_ / "gang");
  EXPECT_EQ(run_two(40, kGoOn).step, 40u);
  EXPECT_EQ(losses("gang"), resumed);
}

TEST_F(RunTest, AStepThatFailsNamesRankStepAndOp) {
  const fakes::FakeRendezvous rendezvous;
  v1::RankPlan both = plan("gang", 1000);
  both.mutable_spec()->mutable_checkpoint()->set_every_steps(1000);
  // The peer fails by itself, as it cannot save behind its last step: its connections close while the other one is in
  // the middle of a step.
  fs::create_directories(root_ / "lost");
  std::ofstream(root_ / "lost" / "ckpt") << "not a directory";
  std::thread peer([&] {
    v1::RankPlan shorter = plan_of_two(both, 1, rendezvous);
    shorter.set_run_dir((root_ / "lost").string());
    shorter.mutable_spec()->mutable_schedule()->set_steps(15);
    shorter.mutable_spec()->mutable_eval()->set_sequences(0);
    EXPECT_EQ(class_of(run_plan(shorter).status()), v1::STORAGE);
  });
  v1::RankPlan longer = plan_of_two(both, 0, rendezvous);
  const auto outcome = run_plan(longer);
  peer.join();
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(class_of(outcome.status()), v1::COMMUNICATION) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()),
              ::testing::MatchesRegex("rank 0, step 1[56]: op '.*' \\(.* f32 \\[.*\\]\\) on lane comm0: .*"));
}

// Where the time went adds up, and steps that follow each other share no moment.
TEST_F(RunTest, PhasesSumToTheStepAndStepsToTheRun) {
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(run_plan(plan("a", 30)).ok());
  const double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  double total = 0;
  int steps = 0;
  std::ifstream file(root_ / "events.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line);
    if (!event.contains("step")) continue;
    ++steps;
    double sum = 0;
    for (const auto& phase : event["step"]["phases"]) sum += phase.value("seconds", 0.0);
    EXPECT_NEAR(sum, event["step"]["seconds"].get<double>(), 1e-6);
    total += event["step"]["seconds"].get<double>();
  }
  EXPECT_EQ(steps, 30);
  EXPECT_LT(total, whole);
}

TEST_F(RunTest, OneStepInManyIsAccountedForAndItsPartsSumToIt) {
  v1::RankPlan made = plan("a", 12);
  made.mutable_spec()->mutable_trace()->set_account_every(4);
  ASSERT_TRUE(run_plan(made).ok());
  std::vector<uint64_t> accounted;
  std::ifstream file(root_ / "events.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line);
    if (!event.contains("step") || !event["step"].contains("account")) continue;
    accounted.push_back(std::stoull(event["step"]["step"].get<std::string>()));
    const auto& account = event["step"]["account"];
    double sum = 0;
    std::map<std::string, double> parts;
    for (const auto& part : account["parts"]) sum += parts[part["phase"]] = part["seconds"];
    EXPECT_NEAR(sum, account["seconds"].get<double>(), 1e-9);
    for (const char* part : {"forward", "backward", "optimizer"}) EXPECT_GT(parts[part], 0) << part;
    EXPECT_FALSE(account.contains("pipeline"));
  }
  EXPECT_THAT(accounted, ::testing::ElementsAre(4, 8, 12));
}

TEST_F(RunTest, TheSequentialExecutorGivesTheSameBits) {
  ASSERT_TRUE(run_plan(plan("lanes", 20)).ok());
  ASSERT_TRUE(run_plan(plan("sequential", 20), kGoOn, Replica::Execution::kSequential).ok());
  EXPECT_EQ(losses("lanes"), losses("sequential"));
  EXPECT_EQ(read(shard("lanes", "00000020")), read(shard("sequential", "00000020")));
}

struct BadData {
  const char* name;
  const char* contents;  // Null: no file.
  const char* says;
};
class BadDataTest : public RunTest, public ::testing::WithParamInterface<BadData> {};
TEST_P(BadDataTest, IsOfClassDataAndNamesTheFile) {
  const fs::path path = root_ / "bad.txt";
  if (GetParam().contents != nullptr) std::ofstream(path) << GetParam().contents;
  v1::RankPlan made = plan("a", 5);
  made.mutable_spec()->mutable_data()->set_train(0, path.string());
  const auto outcome = run_plan(made);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(class_of(outcome.status()), v1::DATA) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr(GetParam().says));
}
INSTANTIATE_TEST_SUITE_P(Files, BadDataTest,
                         ::testing::Values(BadData{"Missing", nullptr, "bad.txt"}, BadData{"Empty", "", "bad.txt"},
                                           BadData{"TooShort", "Ten bytes.", "11"}),
                         [](const auto& one) { return one.param.name; });

TEST_F(RunTest, ARunDirectoryThatCannotBeWrittenIsOfClassStorage) {
  v1::RankPlan made = plan("a", 5);
  std::ofstream(root_ / "file") << "not a directory";
  made.set_run_dir((root_ / "file" / "run").string());
  const auto outcome = run_plan(made);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(class_of(outcome.status()), v1::STORAGE) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("file/run"));
}

TEST(FailureClass, TheFirstMarkStays) {
  const absl::Status inner = with_class(v1::DATA, absl::NotFoundError("x"));
  EXPECT_EQ(class_of(with_class(v1::STORAGE, inner)), v1::DATA);
  EXPECT_EQ(class_of(absl::UnavailableError("peer")), v1::COMMUNICATION);
  EXPECT_EQ(class_of(absl::ResourceExhaustedError("memory")), v1::OUT_OF_MEMORY);
  EXPECT_EQ(class_of(absl::InternalError("bug")), v1::INTERNAL);
}

}  // namespace
}  // namespace telar::train
