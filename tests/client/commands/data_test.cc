#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

#include "client/commands/data.h"
#include "client/commands/exit_codes.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DataTest : public testing::Test {
 protected:
  DataTest() {
    char name[] = "/tmp/telar_data_command_test_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~DataTest() override { fs::remove_all(root_); }
  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string put(const std::string& name, const std::string& content) const {
    std::ofstream(root_ / name, std::ios::binary) << content;
    return path(name);
  }
  // Two documents, "hi" and "you\x1b!", as `name`.
  std::string prepared(const std::string& name = "set", const std::string& format = "prepared") {
    const auto input = put("in.jsonl", "{\"text\": \"hi\"}\n{\"text\": \"you\\u001b!\"}\n");
    EXPECT_EQ(data_prepare(context, {.inputs = {input}, .out = path(name), .format = format}), kOk) << err.str();
    out.str("");
    return path(name);
  }
  nlohmann::json json() const { return nlohmann::json::parse(out.str()); }

  fs::path root_;
  std::istringstream in;
  std::ostringstream out, err;
  RealClock clock;
  Interrupt interrupt;
  Context context{{}, {in, out, err}, clock, interrupt, nullptr};
};

TEST_F(DataTest, PrepareSaysWhatItMade) {
  const auto input = put("a.jsonl", "{\"text\": \"hi\"}\n{\"text\": \"\"}\n{\"text\": 3}\n");
  EXPECT_EQ(data_prepare(context, {.inputs = {input}, .out = path("o/"), .on_error = "skip"}), kOk) << err.str();
  EXPECT_EQ(out.str(), path("o") + ": 1 documents, 3 tokens, 2 B of text, 1 shard, vocabulary 257\n" +
                           "left out: 1 without text\nleft out: 1 faulty, listed in " + path("o") + "/skipped.txt\n");
  out.str("");
  context.options.output = Output::kJson;
  EXPECT_EQ(data_prepare(context, {.inputs = {input}, .out = path("p"), .on_error = "skip"}), kOk);
  EXPECT_EQ(json()["tokens"], 3);
  EXPECT_EQ(json()["skipped"], 1);
  EXPECT_EQ(err.str(), "");
}

TEST_F(DataTest, PrepareNamesTheFaultyLine) {
  const auto input = put("a.jsonl", "{\"text\": \"hi\"}\n{\"texts\": 3}\n");
  EXPECT_EQ(data_prepare(context, {.inputs = {input}, .out = path("o")}), kDamaged);
  EXPECT_EQ(err.str(), "error: " + input + ":2: no field 'text'\n");
  EXPECT_EQ(out.str(), "");
}

TEST_F(DataTest, PrepareRefusesWhatItDoesNotKnow) {
  const auto input = put("a.txt", "hi");
  const std::pair<DataPrepareOptions, std::string> cases[] = {
      {{.format = "parquet"}, "--format: got 'parquet', want prepared, megatron or llmc"},
      {{.input = "xml"}, "--input: got 'xml'"},
      {{.documents = "pages"}, "--documents: got 'pages'"},
      {{.on_error = "ignore"}, "--on-error: got 'ignore'"},
      {{.tokenizer = {.tokenizer = "words.txt"}}, "--tokenizer: 'words.txt' is neither byte nor a .json"},
      {{.tokenizer = {.tokenizer = "a.json", .kind = "byte"}}, "--tokenizer-kind: got 'byte'"}};
  for (auto [options, message] : cases) {
    options.inputs = {input};
    options.out = path("o");
    err.str("");
    EXPECT_EQ(data_prepare(context, options), kUsage);
    EXPECT_THAT(err.str(), HasSubstr(message));
    EXPECT_FALSE(fs::exists(path("o")));
  }
  err.str("");
  EXPECT_EQ(data_prepare(context, {.inputs = {path("none.txt")}, .out = path("o")}), kNotFound);
  EXPECT_EQ(data_prepare(context, {.inputs = {put("a.parquet", "PAR1")}, .out = path("o")}), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("Parquet is not read"));
}

TEST_F(DataTest, PrepareDrawsItsProgress) {
  std::string lines;
  for (int i = 0; i < 30000; ++i) lines += "{\"text\": \"some words that make a line longer\"}\n";
  // Every look at it is a second later.
  struct LaterClock : Clock {
    mutable Steady at;
    Steady now() const override { return at += std::chrono::seconds(1); }
    Wall wall() const override { return {}; }
  } later;
  const auto input = put("a.jsonl", lines);
  Context live{{}, {in, out, err, true, true, [] { return 40; }}, later, interrupt, nullptr};
  EXPECT_EQ(data_prepare(live, {.inputs = {input}, .out = path("o")}), kOk);
  EXPECT_THAT(err.str(), AllOf(HasSubstr("\r\x1b[K"), Not(HasSubstr("\n")), HasSubstr("% ")));
  EXPECT_TRUE(err.str().ends_with("\r\x1b[K")) << "the line is taken away at the end";
  err.str("");
  Context plain{{}, {in, out, err}, later, interrupt, nullptr};
  EXPECT_EQ(data_prepare(plain, {.inputs = {input}, .out = path("p")}), kOk);
  EXPECT_THAT(err.str(), AllOf(Not(HasSubstr("\x1b")), HasSubstr(" documents  "), HasSubstr("MB/s"), HasSubstr("\n")));
}

TEST_F(DataTest, CheckPassesAndFails) {
  const auto set = prepared();
  EXPECT_EQ(data_check(context, {.paths = {set}}), kOk) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("ok: prepared, 2 files, "));
  EXPECT_THAT(out.str(), HasSubstr("2 documents, 9 tokens, all below the vocabulary of 257\n"));
  fs::resize_file(set + "/shard-00000.bin", 16);
  EXPECT_EQ(data_check(context, {.paths = {set}}), kDamaged);
  EXPECT_THAT(err.str(), AllOf(HasSubstr("error: data file " + set + "/shard-00000.idx"), HasSubstr("has 16 bytes")));
  put("set/dataset.json", "{}");
  EXPECT_EQ(data_check(context, {.paths = {set}}), kDamaged);
  EXPECT_EQ(data_check(context, {.paths = {path("none")}}), kNotFound);
  EXPECT_EQ(data_check(context, {.paths = {set}, .vocabulary = -1}), kUsage);
}

TEST_F(DataTest, PeekShowsTextAndBorders) {
  const auto set = prepared();
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}}), kOk) << err.str();
  EXPECT_EQ(out.str(), "--- document 0, token 0 of 9\nhi\n--- document 1, token 3 of 9\nyou\\x1b!\n");
  out.str("");
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}, .position = 4, .tokens = 2}), kOk);
  EXPECT_EQ(out.str(), "--- document 1, from its token 1, token 4 of 9\nou\n");
  out.str("");
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}, .document = 1, .tokens = 3}), kOk);
  EXPECT_EQ(out.str(), "--- document 1, token 3 of 9\nyou\n");
  out.str("");
  context.options.output = Output::kJson;
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}, .tokens = 4}), kOk);
  EXPECT_EQ(json()[0]["ids"], (std::vector<int>{'h', 'i', 256}));
  EXPECT_EQ(json()[0]["text"], "hi");
  EXPECT_EQ(json()[1]["document"], 1);
  EXPECT_EQ(json()[1]["position"], 3);
}

TEST_F(DataTest, PeekShowsIdsWhereNoTokenizerIsKnown) {
  const auto set = prepared("set", "megatron");
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}, .tokens = 4}), kOk);
  EXPECT_EQ(out.str(), "--- document 0, token 0 of 9\n104 105 256\n--- document 1, token 3 of 9\n121\n");
  out.str("");
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}, .tokenizer = {.tokenizer = "byte"}}, .tokens = 3}), kOk);
  EXPECT_EQ(out.str(), "--- document 0, token 0 of 9\nhi\n");
}

TEST_F(DataTest, PeekRefusesWhatIsNotThere) {
  const auto set = prepared();
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}, .position = 9}), kUsage);
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}, .document = 2}), kUsage);
  EXPECT_EQ(data_peek(context, {.data = {.paths = {set}}, .tokens = 0}), kUsage);
  EXPECT_EQ(err.str(),
            "error: --position: got 9, there are 9 tokens\nerror: --document: got 2, there are 2\n"
            "error: --tokens: got 0, want 1 to 16777216\n");
}

TEST_F(DataTest, StatsInEveryFormat) {
  const auto set = prepared();
  EXPECT_EQ(data_stats(context, {.paths = {set}}), kOk) << err.str();
  EXPECT_THAT(out.str(),
              AllOf(HasSubstr("documents            2\n"), HasSubstr("ids in use           8 of a vocabulary of 257\n"),
                    HasSubstr("bytes per token      0.778\n"),
                    HasSubstr("mean 4.5, min 3, p10 3, p50 3, p90 6, p99 6, max 6\n"),
                    HasSubstr("TOKENS FROM  DOCUMENTS  SHARE\n2            1          50.00%\n"),
                    HasSubstr("256  2      22.22%  (end of document)\n27   1      11.11%  \\x1b\n")));
  out.str("");
  context.options.output = Output::kJson;
  EXPECT_EQ(data_stats(context, {.paths = {set}}), kOk);
  EXPECT_EQ(json()["document_tokens"]["p90"], 6);
  EXPECT_EQ(json()["frequent_ids"][0]["count"], 2);
  out.str("");
  context.options.output = Output::kYaml;
  EXPECT_EQ(data_stats(context, {.paths = {set}}), kOk);
  EXPECT_THAT(out.str(),
              AllOf(HasSubstr("documents: 2\ndocument_tokens:\n  mean: 4.5\n"),
                    HasSubstr("frequent_ids:\n  - id: 256\n    count: 2\n    text: \"(end of document)\"\n")));
}

}  // namespace
}  // namespace telar::client
