#include "worker/prepare/prepare.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/fakes/message_of.h"
#include "tests/worker/data/shard_files.h"
#include "tests/worker/data/temp_dir.h"
#include "tests/worker/prepare/pack.h"
#include "worker/prepare/inspect.h"
#include "worker/prepare/work_state.h"

namespace telar::prepare {
namespace {

namespace fs = std::filesystem;
using data::contents;
using data::TempDir;
using fakes::message_of;
using testing::AllOf;
using testing::HasSubstr;

// Every file of a directory.
std::map<std::string, std::string> files_of(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = contents(entry.path().string());
  }
  return files;
}

std::vector<std::string> random_documents(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> words = {"one ", "zw\xc3\xb6lf ", "\xe4\xb8\x89 ", "\xf0\x9f\x98\x80",
                                          "\n",   "\"quoted\" "};
  std::vector<std::string> documents(count);
  for (std::string& document : documents) {
    for (uint64_t left = random() % 120; left > 0; --left) document += words[random() % words.size()];
  }
  return documents;
}

std::string jsonl(const std::vector<std::string>& documents) {
  std::string all;
  for (size_t i = 0; i < documents.size(); ++i) all += nlohmann::json{{"id", i}, {"text", documents[i]}}.dump() + "\n";
  return all;
}

class PrepareTest : public testing::Test {
 protected:
  Options options(const std::vector<std::string>& inputs, const std::string& out = "out") const {
    Options all{.inputs = inputs, .out = dir_.file(out), .threads = 2};
    all.tokenizer.set_kind(v1::TokenizerSpec::BYTE);
    return all;
  }
  absl::Status failed(const Options& options) const { return prepare(options).status(); }

  TempDir dir_;
};

TEST_F(PrepareTest, DocumentsComeOutAsTheyWentIn) {
  const auto documents = random_documents(3000, 1);
  const std::string all = jsonl(documents), half = all.substr(0, all.find("{\"id\":1500"));
  const auto inputs = {dir_.write("a.jsonl", half), dir_.write("b.jsonl.gz", gzip(all.substr(half.size())))};
  Options request = options(inputs);
  request.shard_tokens = 100000;
  const Summary summary = prepare(request).value();
  EXPECT_GT(summary.shards, 3u);
  EXPECT_EQ(summary.documents + summary.empty, 3000u);
  EXPECT_GT(summary.empty, 0u);
  const OpenData data = open_data({.paths = {dir_.file("out")}}).value();
  EXPECT_EQ(data.source->size(), summary.tokens);
  EXPECT_EQ(data.documents->count(), summary.documents);
  uint64_t next = 0, begin = 0, bytes = 0;
  for (const std::string& document : documents) {
    if (document.empty()) continue;
    const uint64_t end = data.documents->end(next++);
    std::vector<int32_t> ids(end - begin);
    ASSERT_TRUE(data.source->read(begin, ids).ok());
    ASSERT_EQ(ids.back(), 256);
    ASSERT_EQ(data.tokenizer->decode(ids).value(), document);
    begin = end;
    bytes += document.size();
  }
  EXPECT_EQ(summary.text_bytes, bytes);
  EXPECT_TRUE(check_data({.paths = {dir_.file("out")}}).ok());
  EXPECT_FALSE(fs::exists(dir_.file("out/") + kStateFile));
}

TEST_F(PrepareTest, TheNumberOfThreadsChangesNothing) {
  const auto input = dir_.write("a.jsonl", jsonl(random_documents(4000, 2)));
  std::map<std::string, std::string> first;
  for (const unsigned threads : {1, 2, 7}) {
    Options request = options({input}, "out" + std::to_string(threads));
    request.threads = threads;
    request.shard_tokens = 150000;
    ASSERT_TRUE(prepare(request).ok());
    const auto files = files_of(request.out);
    EXPECT_GT(files.size(), 6u);
    if (first.empty()) first = files;
    EXPECT_TRUE(files == first) << threads;
  }
}

// Runs in a process of its own, which may kill itself as the kernel would: nothing of it runs any more then.
void run_in_child(const Options& request) {
  const pid_t child = ::fork();
  if (child == 0) {
    prepare(request).IgnoreError();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

// Killed at the given call of `progress`.
void run_and_kill(Options request, int calls) {
  request.progress = [&calls](const Progress&) {
    if (--calls == 0) ::kill(::getpid(), SIGKILL);
  };
  run_in_child(request);
}

TEST_F(PrepareTest, AKilledRunGoesOnAndTheResultIsTheSame) {
  std::mt19937_64 random(11);
  std::string lines = jsonl(random_documents(9000, 3));
  for (size_t at = lines.find("\n{\"id\":"); at != std::string::npos; at = lines.find("\n{\"id\":", at + 90000)) {
    lines.insert(at + 1, "{\"text\": 5}\n\n");  // Faulty lines and empty ones.
  }
  const auto plain = dir_.write("a.jsonl", lines.substr(0, lines.find("{\"id\":3000")));
  const auto packed = dir_.write("b.jsonl.zst", zstd(lines.substr(lines.find("{\"id\":3000"))));
  for (const Format format : {Format::kPrepared, Format::kMegatron, Format::kLlmc}) {
    Options whole = options({plain, packed}, "whole" + std::to_string(static_cast<int>(format)));
    whole.format = format;
    whole.shard_tokens = 130000;
    whole.skip_faults = true;
    const Summary summary = prepare(whole).value();
    EXPECT_GT(summary.skipped, 10u);
    const auto expected = files_of(whole.out);
    for (int round = 0; round < 4; ++round) {
      Options request = whole;
      request.out = dir_.file("killed" + std::to_string(static_cast<int>(format)) + std::to_string(round));
      for (int kills = 0; kills < 3; ++kills) {
        run_and_kill(request, 1 + static_cast<int>(random() % 8));
        request.threads = 1 + random() % 3;
      }
      const auto done = prepare(request);
      if (done.ok()) {
        EXPECT_EQ(done->documents, summary.documents);
        EXPECT_EQ(done->empty, summary.empty);
        EXPECT_EQ(done->skipped, summary.skipped);
      } else {  // One of the children got to the end.
        EXPECT_FALSE(fs::exists(request.out + "/" + kStateFile)) << done.status();
      }
      EXPECT_TRUE(files_of(request.out) == expected) << "round " << round;
    }
  }
}

TEST_F(PrepareTest, WhatAKilledRunLeftBehindItsLastShardIsNotTaken) {
  const auto input = dir_.write("a.jsonl", jsonl(random_documents(4000, 4)) + "{}\n");
  Options request = options({input}, "whole");
  request.shard_tokens = 100000;
  request.skip_faults = true;
  ASSERT_TRUE(prepare(request).ok());
  const auto expected = files_of(request.out);
  request.out = dir_.file("out");
  Options killed = request;
  killed.progress = [](const Progress& progress) {
    if (progress.shards >= 2) ::kill(::getpid(), SIGKILL);
  };
  run_in_child(killed);
  const size_t shards = load_state(request.out).value()->shards.size();
  ASSERT_GE(shards, 2u);
  // Published, but not yet in the state; half written; told twice.
  dir_.write("out/shard-0000" + std::to_string(shards) + ".bin", "half");
  dir_.write(std::string("out/") + kUnpublishedPrefix + "shard-00009.idx", "half");
  dir_.write(std::string("out/") + kSkippedFile, "told before it was saved\n");
  const Summary summary = prepare(request).value();
  EXPECT_GT(summary.resumed_documents, 0u);
  EXPECT_TRUE(files_of(request.out) == expected);
}

TEST_F(PrepareTest, AnotherRequestDoesNotGoOn) {
  const auto input = dir_.write("a.jsonl", jsonl(random_documents(3000, 5)));
  Options request = options({input});
  request.shard_tokens = 50000;
  run_and_kill(request, 3);
  ASSERT_TRUE(load_state(request.out).value());
  Options other = request;
  other.field = "body";
  const auto status = failed(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(status), HasSubstr("was begun by another request: field is \"body\", was \"text\""));
  std::ofstream(input, std::ios::app) << "{\"text\": \"more\"}\n";
  EXPECT_THAT(message_of(failed(request)), AllOf(HasSubstr("inputs[0] is"), HasSubstr("a.jsonl")));
}

TEST_F(PrepareTest, ADirectoryThatHoldsSomethingElse) {
  const auto input = dir_.write("a.txt", "hello");
  fs::create_directory(dir_.file("out"));
  dir_.write("out/mine", "");
  EXPECT_THAT(message_of(failed(options({input}))), HasSubstr("is not empty"));
  EXPECT_EQ(contents(dir_.file("out/mine")), "");
  fs::remove(dir_.file("out/mine"));
  ASSERT_TRUE(prepare(options({input})).ok());
  EXPECT_EQ(failed(options({input})).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(PrepareTest, FaultyDocumentsStopItOrAreLeftOutAndListed) {
  const auto input = dir_.write("a.jsonl",
                                "{\"text\": \"one\"}\n{\"text\": \"tw\n{\"body\": 1}\n{\"text\": 2}\n"
                                "{\"text\": \"\xff\"}\n{\"text\": \"six\"}\n");
  const auto status = failed(options({input}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message_of(status), HasSubstr(input + ":2:13: invalid JSON"));
  Options request = options({input}, "skipping");
  request.skip_faults = true;
  const Summary summary = prepare(request).value();
  EXPECT_EQ(summary.documents, 2u);
  EXPECT_EQ(summary.skipped, 4u);
  EXPECT_THAT(contents(request.out + "/" + kSkippedFile),
              AllOf(HasSubstr(input + ":2:13: invalid JSON"), HasSubstr("\n" + input + ":3: no field 'text'\n"),
                    HasSubstr("\n" + input + ":4: field 'text' is a number, not a string\n"),
                    HasSubstr("\n" + input + ":5:11: byte 0xff is not UTF-8\n")));
  // A run that stopped goes on when it may skip.
  request.out = dir_.file("out");
  EXPECT_EQ(prepare(request)->skipped, 4u);
}

TEST_F(PrepareTest, DamagedFilesStopItEvenWhenSkipping) {
  const std::string packed = gzip(jsonl(random_documents(2000, 6)));
  Options request = options({dir_.write("a.jsonl.gz", packed.substr(0, packed.size() / 2))});
  request.skip_faults = true;
  const auto status = failed(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("a.jsonl.gz"), HasSubstr("ends too soon")));
}

TEST_F(PrepareTest, NoDocumentAtAll) {
  const auto status = failed(options({dir_.write("a.txt", ""), dir_.write("b.jsonl", "\n{\"text\": \"\"}\n")}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message_of(status), HasSubstr("no document with text in 2 input files (2 empty, 0 skipped)"));
  // Nothing was written, so the directory serves another request.
  EXPECT_EQ(prepare(options({dir_.write("c.txt", "one")}))->documents, 1u);
}

TEST_F(PrepareTest, OneDocumentIsEnough) {
  ASSERT_TRUE(prepare(options({dir_.write("a.txt", "x")})).ok());
  EXPECT_EQ(check_data({.paths = {dir_.file("out")}})->source->size(), 2u);
}

TEST_F(PrepareTest, StopsBehindTheNumberAskedFor) {
  const auto documents = random_documents(2000, 7);
  Options request = options({dir_.write("a.jsonl", jsonl(documents))});
  request.max_documents = 1234;
  EXPECT_EQ(prepare(request)->documents, 1234u);
}

TEST_F(PrepareTest, OptionsAreChecked) {
  const auto input = dir_.write("a.txt", "x");
  Options request = options({input});
  request.format = Format::kLlmc;
  request.shard_tokens = uint64_t{1} << 31;
  EXPECT_THAT(message_of(failed(request)), HasSubstr("--shard-tokens: got 2147483648, want 1 to 2147483647"));
  request = options({input});
  request.threads = 0;
  EXPECT_THAT(message_of(failed(request)), HasSubstr("--threads"));
  request = options({dir_.file("none*")});
  EXPECT_EQ(failed(request).code(), absl::StatusCode::kNotFound);
  request = options({input});
  request.tokenizer.set_kind(v1::TokenizerSpec::NONE);
  EXPECT_THAT(message_of(failed(request)), HasSubstr("tokenizer.kind: none"));
  EXPECT_FALSE(fs::exists(request.out)) << "made before all was checked";
}

TEST_F(PrepareTest, ProgressCountsUpToTheWhole) {
  const auto input = dir_.write("a.jsonl.gz", gzip(jsonl(random_documents(5000, 8))));
  Options request = options({input});
  std::vector<Progress> seen;
  request.progress = [&seen](const Progress& progress) { seen.push_back(progress); };
  const Summary summary = prepare(request).value();
  ASSERT_GT(seen.size(), 3u);
  for (size_t i = 1; i < seen.size(); ++i) {
    EXPECT_GE(seen[i].read_bytes, seen[i - 1].read_bytes);
    EXPECT_GE(seen[i].documents, seen[i - 1].documents);
  }
  EXPECT_EQ(seen.back().read_bytes, fs::file_size(input));
  EXPECT_EQ(seen.back().total_bytes, fs::file_size(input));
  EXPECT_EQ(seen.back().tokens, summary.tokens);
  EXPECT_EQ(seen.back().shards, 1u);
}

}  // namespace
}  // namespace telar::prepare
