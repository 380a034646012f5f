#include "worker/data/prepared.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/message_of.h"
#include "tests/worker/data/shard_files.h"
#include "tests/worker/data/temp_dir.h"
#include "worker/data/sha256.h"

namespace telar::data {
namespace {

using fakes::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Sha256, KnownValue) {
  EXPECT_EQ(sha256({"a", "bc"}), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

class PreparedTest : public testing::Test {
 protected:
  PreparedTest() { write_prepared(path(), {{{'h', 'i', 256}, {'y', 256}}, {{'o', 'k', '!', 256}}}); }
  std::string path(const std::string& name = "") const { return dir_.file(name.empty() ? "set" : "set/" + name); }
  // Replaces text in dataset.json.
  void edit(const std::string& from, const std::string& to) {
    std::string json = contents(path("dataset.json"));
    const size_t at = json.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
    dir_.write("set/dataset.json", json);
  }
  static absl::StatusOr<std::unique_ptr<TokenSource>> open_all(const std::vector<std::string>& paths, int64_t vocab) {
    const auto directories = read_prepared(paths);
    if (!directories.ok()) return directories.status();
    return open_prepared(*directories, vocab);
  }
  std::string refused(absl::StatusCode code) {
    const auto status = open_all({path()}, 257).status();
    EXPECT_EQ(status.code(), code) << status;
    return message_of(status);
  }
  TempDir dir_;
};

TEST_F(PreparedTest, IsOneSourceWithItsDocuments) {
  write_prepared(dir_.file("more"), {{{'z', 256}}});
  const auto source = open_all({path(), dir_.file("more")}, 300).value();
  std::vector<int32_t> tokens(source->size());
  ASSERT_TRUE(source->read(0, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre('h', 'i', 256, 'y', 256, 'o', 'k', '!', 256, 'z', 256));
  const auto documents = source->documents(-1).value();
  ASSERT_EQ(documents->count(), 4u);
  EXPECT_EQ(documents->end(1), 5u);
  EXPECT_EQ(documents->end(3), source->size());
  EXPECT_EQ(prepared_tokenizer(read_prepared({path()}).value())->kind(), v1::TokenizerSpec::BYTE);
}

TEST_F(PreparedTest, WhatIsWrittenIsRead) {
  PreparedDataset dataset = read_dataset(path()).value();
  dataset.tokenizer.spec.set_kind(v1::TokenizerSpec::TIKTOKEN);
  dataset.tokenizer.spec.set_path("tokenizer.tiktoken");
  dataset.tokenizer.spec.set_pattern("gpt2");
  dataset.tokenizer.spec.set_end_of_document("<end>");
  (*dataset.tokenizer.spec.mutable_special_tokens())["<end>"] = 256;
  dir_.write("set/dataset.json", dataset_text(dataset));
  const PreparedDataset again = read_dataset(path()).value();
  EXPECT_EQ(again.tokenizer.spec.SerializeAsString(), dataset.tokenizer.spec.SerializeAsString());
  EXPECT_EQ(again.tokenizer.end_of_document, 256);
  EXPECT_EQ(again.shards, dataset.shards);
  EXPECT_EQ(again.text_bytes, 6u);
  EXPECT_EQ(tokenizer_spec("/d", again.tokenizer).path(), "/d/tokenizer.tiktoken");
}

TEST_F(PreparedTest, AVocabularyThatIsTooSmallIsRefusedWithBothNumbers) {
  const auto status = open_all({path()}, 256).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr(path()), HasSubstr("257"), HasSubstr("256")));
}

TEST_F(PreparedTest, AnotherTokenizerIsRefusedWithBothHashes) {
  v1::TokenizerSpec spec;
  EXPECT_TRUE(check_tokenizer(read_prepared({path()}).value(), spec).ok());
  spec.set_kind(v1::TokenizerSpec::BYTE);
  EXPECT_TRUE(check_tokenizer(read_prepared({path()}).value(), spec).ok());
  spec.set_kind(v1::TokenizerSpec::HUGGING_FACE);
  spec.set_path(dir_.write("t.json", "{}"));
  const std::string hash = "hugging_face:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
  EXPECT_EQ(tokenizer_hash(spec).value(), hash);
  const auto status = check_tokenizer(read_prepared({path()}).value(), spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("made with tokenizer byte"), HasSubstr("job's is " + hash)));
  const std::string plain = tokenizer_hash(spec).value();
  spec.set_pattern("x");
  EXPECT_NE(tokenizer_hash(spec).value(), plain);
  spec.set_path(dir_.file("none"));
  EXPECT_EQ(check_tokenizer(read_prepared({path()}).value(), spec).code(), absl::StatusCode::kNotFound);
}

TEST_F(PreparedTest, TwoSetsOfDifferentTokenizersAreRefused) {
  std::filesystem::copy(path(), dir_.file("other"));
  edit("\"hash\": \"byte\"", "\"hash\": \"byte:1\"");
  EXPECT_THAT(message_of(open_all({dir_.file("other"), path()}, 257).status()),
              AllOf(HasSubstr(path() + ": its tokenizer is byte:1"), HasSubstr(dir_.file("other") + " is byte")));
}

TEST_F(PreparedTest, ATokenizerFileThatWasChangedIsNamed) {
  PreparedDataset dataset = read_dataset(path()).value();
  dataset.tokenizer.spec.set_kind(v1::TokenizerSpec::HUGGING_FACE);
  dataset.tokenizer.spec.set_path("tokenizer.json");
  v1::TokenizerSpec spec = dataset.tokenizer.spec;
  spec.set_path(dir_.write("set/tokenizer.json", "{}"));
  dataset.tokenizer.hash = tokenizer_hash(spec).value();
  dir_.write("set/dataset.json", dataset_text(dataset));
  EXPECT_TRUE(prepared_tokenizer(read_prepared({path()}).value()).ok());
  dir_.write("set/tokenizer.json", "{ }");
  const auto status = prepared_tokenizer(read_prepared({path()}).value()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("set/tokenizer.json"), HasSubstr(dataset.tokenizer.hash)));
}

TEST_F(PreparedTest, DatasetFileMissingOrUnknown) {
  edit("\"format_version\": 1", "\"format_version\": 2");
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("set/dataset.json"), HasSubstr("format_version is 2; this program reads 1")));
  std::filesystem::remove(path("dataset.json"));
  EXPECT_THAT(refused(absl::StatusCode::kNotFound), HasSubstr("set/dataset.json"));
  dir_.write("set/dataset.json", "{\"format_version\": 1");
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("parse error"));
}

TEST_F(PreparedTest, FieldsOfAWrongKindAreNamed) {
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"\"tokens\": 9", "\"tokens\": -9", "tokens is -9, not a count"},
      {"\"tokens\": 9", "\"tokens\": 8", "the shards have 3 documents and 9 tokens together, not 3 and 8"},
      {"\"kind\": \"byte\"", "\"kind\": \"none\"", "tokenizer.kind is 'none'"},
      {"\"end_of_document\": 256", "\"end_of_document\": 257", "end_of_document is 257, not below"},
      {"\"vocabulary\": 257", "\"vocabulary\": 5000000000", "vocabulary is 5000000000, more than"},
      {"\"name\": \"shard-00001\"", "\"name\": \"../shard\"", "name is '../shard', not a name in this directory"},
      {"\"bin_crc32c\": \"", "\"bin_crc32c\": \"x", "not eight hex digits"}};
  const std::string good = contents(path("dataset.json"));
  for (const auto& [from, to, message] : cases) {
    edit(from, to);
    EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), AllOf(HasSubstr("set/dataset.json"), HasSubstr(message)));
    dir_.write("set/dataset.json", good);
  }
}

TEST_F(PreparedTest, ShardsThatDisagreeOrAreMissing) {
  std::filesystem::copy_file(path("shard-00000.bin"), path("shard-00001.bin"),
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::copy_file(path("shard-00000.idx"), path("shard-00001.idx"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refused(absl::StatusCode::kDataLoss),
              AllOf(HasSubstr("shard-00001.bin: 10 bytes"), HasSubstr("dataset.json says 8")));
  std::filesystem::remove(path("shard-00001.idx"));
  EXPECT_THAT(refused(absl::StatusCode::kDataLoss),
              AllOf(HasSubstr("shard-00001.idx"), HasSubstr("but dataset.json names it")));
}

}  // namespace
}  // namespace telar::data
