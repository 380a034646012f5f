// What a run saves, and what it starts from.
#include "tests/worker/train/run_fixture.h"
#include "worker/convert/convert.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read;
using testing::RunTest;

// Training that goes on beside its saves computes what one that waits for them does, and saves the same.
TEST_F(RunTest, SavesBesideTrainingAreThoseThatItWaitsFor) {
  v1::RankPlan waits = plan("waits", 25), beside = plan("beside", 25);
  waits.mutable_spec()->mutable_checkpoint()->set_async(false);
  for (v1::RankPlan* made : {&waits, &beside}) {
    made->mutable_spec()->mutable_checkpoint()->set_every_steps(5);
    made->mutable_spec()->mutable_checkpoint()->set_keep(9);
    made->mutable_spec()->mutable_eval()->set_every_steps(10);
    ASSERT_TRUE(run_plan(*made).ok());
  }
  EXPECT_EQ(losses("beside"), losses("waits"));
  for (const char* step : {"00000005", "00000010", "00000015", "00000020", "00000025"}) {
    EXPECT_TRUE(read(shard("beside", step)) == read(shard("waits", step))) << step;
    nlohmann::json told = manifest("beside", step), want = manifest("waits", step);
    for (nlohmann::json* one : {&told, &want}) {
      for (const char* differs : {"spec", "epoch", "manifest_crc32c"}) one->erase(differs);
    }
    EXPECT_EQ(told, want);
  }
  // Each with its state, in order, once per run; metrics.jsonl tells those that are over.
  std::vector<std::string> states;
  std::ifstream events(root_ / "events.jsonl");
  for (std::string line; std::getline(events, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.contains("checkpoint")) states.push_back(event["checkpoint"]["state"].get<std::string>());
  }
  EXPECT_EQ(states.size(), 20u);
  EXPECT_EQ(std::count(states.begin(), states.end(), "DURABLE"), 10);
  const std::string metrics = read(root_ / "beside" / "metrics.jsonl");
  EXPECT_THAT(metrics, HasSubstr("{\"step\":25,\"saved\":true,\"save_seconds\":"));
}

// What FP8 tensors are scaled by is of steps before: state as well.
TEST_F(RunTest, DelayedScalesAreSaved) {
  const auto fp8 = [&](const std::string& run_dir, uint64_t steps, uint32_t history) {
    v1::RankPlan made = plan(run_dir, steps);
    v1::PrecisionSpec& precision = *made.mutable_spec()->mutable_precision();
    precision.set_compute(v1::FP8);
    precision.set_recipe(v1::PrecisionSpec::DELAYED);
    precision.set_fp8_history(history);
    EXPECT_THAT(plan::resolve(*made.mutable_spec(), v1::ResourceSpec::CPU), IsEmpty());
    return made;
  };
  ASSERT_TRUE(run_plan(fp8("unbroken", 40, 4)).ok());
  ASSERT_NO_FATAL_FAILURE(run_and_stop(fp8("broken", 40, 4)));
  ASSERT_TRUE(run_plan(fp8("broken", 40, 4)).ok());
  EXPECT_EQ(losses("broken"), losses("unbroken"));
  EXPECT_TRUE(read(shard("broken", "00000040")) == read(shard("unbroken", "00000040")));
  const auto amaxes = [&](const std::string& run_dir) {
    std::map<std::string, nlohmann::json> shapes;
    const nlohmann::json saved = manifest(run_dir, "00000040");
    for (const auto& tensor : saved["tensors"]) {
      if (tensor["kind"] == "fp8_amax") shapes[tensor["name"]] = tensor["shape"];
    }
    return shapes;
  };
  EXPECT_EQ(amaxes("broken").size(), 2u * 4);
  EXPECT_EQ(amaxes("broken")["layers.1.gate_up"], (nlohmann::json{3, 4}));
  // Of another length, the newest; of none, as at first.
  ASSERT_TRUE(run_plan(fp8("broken", 42, 2)).ok());
  ASSERT_TRUE(run_plan(plan("bf16", 38)).ok());
  ASSERT_TRUE(run_plan(fp8("bf16", 40, 4)).ok());
  EXPECT_EQ(amaxes("bf16").size(), 2u * 4);
  v1::RankPlan current = fp8("broken", 44, 2);
  v1::PrecisionSpec& precision = *current.mutable_spec()->mutable_precision();
  precision.clear_recipe();
  precision.clear_fp8_history();
  precision.clear_fp8_amax();
  EXPECT_THAT(plan::resolve(*current.mutable_spec(), v1::ResourceSpec::CPU), IsEmpty());
  ASSERT_TRUE(run_plan(current).ok());
  EXPECT_EQ(losses("broken").size(), 44u);
}

TEST_F(RunTest, ARankAloneAsksTheCoordinatorTooIfThereIsOne) {
  fakes::FakeRendezvous coordinator;
  v1::RankPlan made = plan("a", 20);
  made.set_rendezvous_address(coordinator.address());
  ASSERT_TRUE(run_plan(made).ok());
  EXPECT_EQ(coordinator.checkpoints.asked, 2);
  EXPECT_TRUE(fs::exists(shard("a", "00000020")));
  // What an epoch had decided and could not rename, the next one publishes.
  fs::rename(root_ / "a" / "ckpt" / "step-00000020", root_ / "a" / "ckpt" / ".tmp-step-00000020-1");
  v1::RankPlan next = plan("a", 30);
  next.set_rendezvous_address(coordinator.address());
  const size_t before = losses("a").size();
  ASSERT_TRUE(run_plan(next).ok());
  EXPECT_EQ(before, 20u);
  EXPECT_THAT(read(root_ / "events.jsonl"),
              HasSubstr("\"resumed_from\":\"" + (root_ / "a/ckpt/step-00000020").string()));
  // An epoch that is over saves nothing; the end of the run tells.
  coordinator.checkpoints.stale = true;
  v1::RankPlan late = plan("b", 4);
  late.set_rendezvous_address(coordinator.address());
  const auto outcome = run_plan(late);
  EXPECT_EQ(class_of(outcome.status()), v1::STORAGE) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("the current epoch is another"));
  EXPECT_FALSE(fs::exists(shard("b", "00000004")));
}

TEST_F(RunTest, ARankOfARevokedNodeEndsAtItsNextSaveAndPublishesNothing) {
  fakes::FakeRendezvous coordinator;
  coordinator.checkpoints.revoked = true;
  v1::RankPlan made = plan("a", 10'000);
  made.set_rendezvous_address(coordinator.address());
  const auto outcome = run_plan(made);
  EXPECT_EQ(class_of(outcome.status()), v1::STORAGE) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("node a is revoked"));
  EXPECT_EQ(coordinator.checkpoints.asked, 1);
  EXPECT_LT(losses("a").size(), 100u);
  EXPECT_FALSE(fs::exists(shard("a", "00000010")));
}

TEST_F(RunTest, FallsBackToTheNewestCheckpointThatIsWhole) {
  ASSERT_TRUE(run_plan(plan("a", 30)).ok());
  const std::string want = read(shard("a", "00000030"));
  std::string torn = want;
  torn[torn.size() / 2] ^= 1;
  std::ofstream(shard("a", "00000030"), std::ios::binary) << torn;
  const auto outcome = run_plan(plan("a", 30));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const nlohmann::json started = events("started").back();
  EXPECT_THAT(started["resumed_from"].get<std::string>(), ::testing::EndsWith("step-00000020"));
  ASSERT_EQ(started["passed_over"].size(), 1u);
  EXPECT_THAT(started["passed_over"][0].get<std::string>(), ::testing::StartsWith(root_ / "a/ckpt/step-00000030: "));
  EXPECT_EQ(read(shard("a", "00000030")), want);
}

TEST_F(RunTest, NeverStartsAgainFromNothingSilently) {
  ASSERT_TRUE(run_plan(plan("a", 10)).ok());
  fs::resize_file(shard("a", "00000010"), 100);
  const auto outcome = run_plan(plan("a", 20));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(class_of(outcome.status()), v1::STORAGE);
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("none of the 1 checkpoints"));
}

TEST_F(RunTest, StartsFromTheWeightsOfAnotherRun) {
  ASSERT_TRUE(run_plan(plan("a", 60)).ok());
  v1::RankPlan made = plan("b", 1);
  made.mutable_spec()->mutable_checkpoint()->set_init_from((root_ / "a" / "ckpt" / "step-00000060").string());
  ASSERT_TRUE(run_plan(made).ok());
  const auto value = [](const std::string& line) { return std::stod(line.substr(line.find(' '))); };
  EXPECT_LT(value(losses("b").front()), 0.7 * value(losses("a").front()));
}

// The same weights in another format: the same losses to the last bit.
TEST_F(RunTest, StartsFromAHuggingFaceDirectory) {
  ASSERT_TRUE(run_plan(plan("a", 10)).ok());
  const std::string ours = (root_ / "a" / "ckpt" / "step-00000010").string(), theirs = (root_ / "hf").string();
  auto& files = checkpoint::FileSystem::posix();
  const auto model = convert::open_model(files, ours);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(convert::convert(files, *model, theirs, {.to = convert::Format::kHuggingFace}).ok());
  const auto from = [&](const std::string& run_dir, const std::string& path) {
    v1::RankPlan made = plan(run_dir, 2);
    made.mutable_spec()->mutable_checkpoint()->set_init_from(path);
    return made;
  };
  ASSERT_TRUE(run_plan(from("b", ours)).ok());
  ASSERT_TRUE(run_plan(from("c", theirs)).ok());
  EXPECT_THAT(losses("c"), ::testing::SizeIs(2));
  EXPECT_EQ(losses("c"), losses("b"));

  // Another model is a mistake in the spec; once the run has a checkpoint of its own, nobody asks for the directory.
  v1::RankPlan other = from("d", theirs);
  other.mutable_spec()->mutable_model()->set_rope_theta(5000);
  const auto refused = run_plan(other);
  EXPECT_EQ(class_of(refused.status()), v1::CONFIG);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("model.rope_theta is 10000, the spec has 5000"));
  fs::remove_all(theirs);
  v1::RankPlan longer = plan("c", 4);
  longer.mutable_spec()->mutable_checkpoint()->set_init_from(theirs);
  EXPECT_TRUE(run_plan(longer).ok());
}

// A model that no machine has the memory for is not even tried.
TEST_F(RunTest, ACheckpointOfAnotherModelIsRefusedBeforeItsModelTakesMemory) {
  ASSERT_TRUE(run_plan(plan("a", 10)).ok());
  for (const bool weights_only : {false, true}) {
    v1::RankPlan made = plan(weights_only ? "b" : "a", 20);
    v1::ModelSpec& model = *made.mutable_spec()->mutable_model();
    model.set_hidden(1 << 16);
    model.set_layers(64);
    model.clear_head_dim();
    if (weights_only) {
      made.mutable_spec()->mutable_checkpoint()->set_init_from((root_ / "a" / "ckpt" / "step-00000010").string());
    }
    EXPECT_THAT(plan::resolve(*made.mutable_spec(), v1::ResourceSpec::CPU), IsEmpty());
    const auto outcome = run_plan(made);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(class_of(outcome.status()), v1::CONFIG) << outcome.status();
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("master embed.weight is F32 [257, 32], the model"));
  }
}

}  // namespace
}  // namespace telar::train
