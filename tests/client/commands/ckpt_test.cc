#include "client/commands/ckpt.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/commands/exit_codes.h"
#include "tests/client/commands/command_test.h"
#include "tests/worker/checkpoint/state.h"
#include "worker/checkpoint/run_files.h"

namespace telar::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class CkptTest : public CommandTest {
 protected:
  CkptTest() {
    char name[] = "/tmp/telar_ckpt_test_XXXXXX";
    root_ = mkdtemp(name);
    run_ = (root_ / "run").string();
    fs::create_directories(run_);
    add_job("demo-1", v1::Job::RUNNING).set_run_dir(run_);
  }
  ~CkptTest() override { fs::remove_all(root_); }

  std::string make(uint64_t step, std::optional<double> eval_loss = std::nullopt, const std::string& run = "run") {
    const auto saved = checkpoint::save(checkpoint::FileSystem::posix(), (root_ / run).string(),
                                        checkpoint::State(step), 1, {}, eval_loss);
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved->path;
  }
  static void damage(const std::string& path) {
    std::fstream file(path + "/shard-00000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
  }
  std::string taken() {
    std::string text = out.str();
    out.str("");
    return text;
  }
  std::string complaint() {
    std::string text = err.str();
    err.str("");
    return text;
  }
  nlohmann::json taken_json() { return nlohmann::json::parse(taken()); }

  fs::path root_;
  std::string run_;
};

TEST_F(CkptTest, LsShowsEachWithItsState) {
  const std::string ten = make(10, 2.5), twenty = make(20);
  fs::remove(make(30) + "/shard-00001.safetensors");
  fs::create_directories(run_ + "/ckpt/.tmp-step-00000040-3");
  ASSERT_EQ(ckpt_pin(context, ten, true), kOk);
  EXPECT_EQ(taken(), "pinned " + ten + "\n");
  ASSERT_EQ(ckpt_ls(context, run_), kOk) << err.str();
  std::vector<std::string> lines;
  std::istringstream text(taken());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0], MatchesRegex("STEP +SAVED +SIZE +EVAL LOSS +LAYOUT +EPOCH +PINNED +STATE"));
  EXPECT_THAT(lines[1],
              MatchesRegex("10 +20..-..-..T..:..:..Z  [0-9.]+ KiB +2.5000 +tp=1 pp=1 dp=2 zero=0  1 +yes +good"));
  EXPECT_THAT(lines[2], MatchesRegex("20 .* - +tp=1 pp=1 dp=2 zero=0  1 +- +good"));
  EXPECT_THAT(lines[3], MatchesRegex("30 .* damaged: open .*/shard-00001.safetensors: .*"));
  EXPECT_THAT(lines[4], MatchesRegex("40 .* unfinished"));

  context.options.output = Output::kJson;
  ASSERT_EQ(ckpt_ls(context, run_ + "/ckpt/"), kOk);
  const auto json = taken_json()["checkpoints"];
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json[0]["eval_loss"], 2.5);
  EXPECT_EQ(json[0]["pinned"], true);
  EXPECT_EQ(json[1]["eval_loss"], nullptr);
  EXPECT_EQ(json[1]["path"], twenty);
  EXPECT_EQ(json[2]["state"], "damaged");
  EXPECT_EQ(json[3]["state"], "unfinished");
  context.options.output = Output::kYaml;
  ASSERT_EQ(ckpt_ls(context, twenty), kOk);
  EXPECT_THAT(taken(), testing::StartsWith("checkpoints:\n- path: " + twenty + "\n  step: 20\n  state: good\n"));
}

TEST_F(CkptTest, JobsAndStepsAndPathsMeanTheSame) {
  const std::string ten = make(10);
  make(20);
  context.options.output = Output::kName;
  for (const std::string& name : {ten, ten + "/", std::string("demo-1@10"), std::string("demo@10"), run_ + "@10",
                                  run_ + "/ckpt@00000010", fs::relative(ten).string()}) {
    ASSERT_EQ(ckpt_show(context, name), kOk) << name << ": " << err.str();
    EXPECT_EQ(taken(), ten + "\n") << name;
  }
  for (const std::string& name : {std::string("demo-1"), run_, run_ + "@latest"}) {
    ASSERT_EQ(ckpt_show(context, name), kOk) << name << ": " << err.str();
    EXPECT_THAT(taken(), HasSubstr("step-00000020"));
  }
}

TEST_F(CkptTest, ArgumentsThatNameNothing) {
  make(10);
  add_job("far-1", v1::Job::RUNNING, "far").set_run_dir("/nowhere/far-1");
  EXPECT_EQ(ckpt_ls(context, "/nowhere/at/all"), kNotFound);
  EXPECT_THAT(complaint(), HasSubstr("'/nowhere/at/all': no such directory"));
  EXPECT_EQ(ckpt_ls(context, "nobody"), kNotFound);
  EXPECT_EQ(ckpt_ls(context, "no/body"), kNotFound);
  EXPECT_EQ(ckpt_ls(context, "far-1"), kRefused);
  EXPECT_THAT(complaint(), HasSubstr("/nowhere/far-1/ckpt, which is not there on this machine"));
  EXPECT_EQ(ckpt_ls(context, root_.string()), kUsage);
  EXPECT_THAT(complaint(), HasSubstr("neither a run directory, nor its ckpt, nor a checkpoint"));
  EXPECT_EQ(ckpt_show(context, run_ + "@11"), kNotFound);
  EXPECT_THAT(complaint(), HasSubstr("no checkpoint of step 11"));
  EXPECT_EQ(ckpt_show(context, run_ + "@soon"), kUsage);
  EXPECT_EQ(ckpt_pin(context, run_, true), kUsage);
  EXPECT_THAT(complaint(), HasSubstr("names a run; add @STEP"));
  EXPECT_EQ(ckpt_rm(context, {run_}), kUsage);
  fs::remove_all(run_ + "/ckpt/step-00000010");
  EXPECT_EQ(ckpt_ls(context, run_), kOk);
  EXPECT_EQ(ckpt_verify(context, run_), kNotFound);
}

TEST_F(CkptTest, ShowTellsWhatIsInIt) {
  make(10, 2.25);
  ASSERT_EQ(ckpt_show(context, run_), kOk) << err.str();
  const std::string page = taken();
  for (const char* line :
       {"Step:        10\n", "State:       good\n", "Pinned:      no\n", "Job:         projects/p/jobs/j\n",
        "Eval loss:   2.2500\n", "Layout:      tp=1 pp=1 dp=2 zero=0\n", "Samples:     80\n",
        "  master F32: 2 tensors, 124 B\n", "  weight BF16: 3 tensors, 70 B\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  context.options.output = Output::kWide;
  ASSERT_EQ(ckpt_show(context, run_), kOk);
  EXPECT_THAT(taken(), HasSubstr("\n  weight   lm_head  BF16   [6, 5]  0 B    0       wte\n"));
  context.options.output = Output::kJson;
  ASSERT_EQ(ckpt_show(context, run_), kOk);
  const auto json = taken_json();
  EXPECT_EQ(json["tensors"].size(), 6u);
  EXPECT_EQ(json["spec"]["batch"]["global"], 8);
}

TEST_F(CkptTest, VerifyReadsEverything) {
  const std::string ten = make(10), twenty = make(20);
  ASSERT_EQ(ckpt_verify(context, run_), kOk) << err.str();
  EXPECT_EQ(taken(), ten + ": good\n" + twenty + ": good\n");
  damage(twenty);
  ASSERT_EQ(ckpt_verify(context, run_), kDamaged);
  EXPECT_THAT(taken(),
              MatchesRegex(ten + ": good\n" + twenty + ": damaged: checkpoint file .*shard-00000.*CRC32C.*\n"));
  EXPECT_EQ(ckpt_verify(context, ten), kOk);
  context.options.output = Output::kJson;
  taken();
  ASSERT_EQ(ckpt_verify(context, twenty), kDamaged);
  EXPECT_EQ(taken_json()["checkpoints"][0]["state"], "damaged");
}

// Of one in a format to come nothing is known; a script that looks for damage must not find any.
TEST_F(CkptTest, VerifyTellsDamageFromWhatCannotBeRead) {
  const std::string ten = make(10), twenty = make(20);
  auto& files = checkpoint::FileSystem::posix();
  checkpoint::Manifest manifest = checkpoint::CheckpointReader::open(files, twenty).value()->manifest();
  manifest.format_version = 99;
  ASSERT_TRUE(checkpoint::write_file(files, twenty + "/manifest.json", checkpoint::to_text(manifest).value()).ok());
  EXPECT_EQ(ckpt_verify(context, run_), kRefused);
  EXPECT_THAT(taken(), MatchesRegex(ten + ": good\n" + twenty + ": unreadable: .*format_version 99 is newer.*\n"));
  damage(ten);
  EXPECT_EQ(ckpt_verify(context, run_), kDamaged);
}

TEST_F(CkptTest, DiffNamesTheFirstThatDiffers) {
  const std::string ten = make(10), same = make(10, 1.0, "other"), twenty = make(20);
  ASSERT_EQ(ckpt_diff(context, ten, same), kOk) << err.str();
  EXPECT_EQ(taken(), "A: " + ten + "\nB: " + same + "\nall 6 tensors are equal bit for bit\n");
  ASSERT_EQ(ckpt_diff(context, ten, twenty), kDiffers);
  const std::string page = taken();
  EXPECT_THAT(page, HasSubstr("KIND     NAME     DIFFERENCE  DIFFERING  MAX ABS   MAX REL\n"));
  EXPECT_THAT(page, HasSubstr("weight   norm     values      5 of 5"));
  EXPECT_THAT(page, HasSubstr("step              10  20\n"));
  EXPECT_THAT(page, HasSubstr("6 of 6 tensors differ; the first is weight norm\n"));
  context.options.output = Output::kJson;
  ASSERT_EQ(ckpt_diff(context, ten, twenty), kDiffers);
  const auto json = taken_json();
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["tensors"][0]["difference"], "values");
  EXPECT_EQ(json["fields"][0]["path"], "step");
  damage(twenty);
  EXPECT_EQ(ckpt_diff(context, ten, twenty), kDamaged);
  EXPECT_THAT(complaint(), HasSubstr("CRC32C"));
  fs::remove(twenty + "/manifest.json");
  EXPECT_EQ(ckpt_diff(context, ten, twenty), kNotFound);
}

TEST_F(CkptTest, RmRefusesWhatIsPinnedAndTheLastGoodOne) {
  const std::string ten = make(10), twenty = make(20);
  ASSERT_EQ(ckpt_pin(context, run_ + "@10", true), kOk);
  EXPECT_EQ(ckpt_rm(context, {ten}), kRefused);
  EXPECT_THAT(complaint(), HasSubstr("is pinned; --force removes it all the same"));
  ASSERT_EQ(ckpt_pin(context, run_ + "@10", false), kOk);
  taken();
  ASSERT_EQ(ckpt_rm(context, {ten}), kOk) << err.str();
  EXPECT_EQ(taken(), "removed " + ten + "\n");
  EXPECT_FALSE(fs::exists(ten));
  EXPECT_EQ(ckpt_rm(context, {twenty}), kRefused);
  EXPECT_THAT(complaint(), HasSubstr("only good one"));
  EXPECT_TRUE(fs::exists(twenty));
  EXPECT_EQ(ckpt_rm(context, {.checkpoint = twenty, .force = true}), kOk);
  EXPECT_FALSE(fs::exists(twenty));
  EXPECT_EQ(ckpt_rm(context, {twenty}), kNotFound);
}

}  // namespace
}  // namespace telar::client
