#include "worker/prepare/inspect.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/message_of.h"
#include "tests/worker/data/shard_files.h"
#include "tests/worker/data/temp_dir.h"

namespace telar::prepare {
namespace {

namespace fs = std::filesystem;
using data::bytes_of;
using data::contents;
using data::patch;
using fakes::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class InspectTest : public testing::Test {
 protected:
  InspectTest() { data::write_prepared(set_, {{{'h', 'i', 256}, {'y', 256}}, {{'i', 'k', '!', '!', 256}}}); }
  absl::Status checked(const std::string& path) const { return check_data({.paths = {path}}).status(); }

  data::TempDir dir_;
  const std::string set_ = dir_.file("set");
};

TEST_F(InspectTest, KnowsWhatItLooksAt) {
  const OpenData prepared = open_data({.paths = {set_}}).value();
  EXPECT_STREQ(prepared.format, "prepared");
  EXPECT_EQ(prepared.vocabulary, 257);
  EXPECT_EQ(prepared.end_of_document, 256);
  EXPECT_EQ(prepared.files, 4u);
  EXPECT_EQ(prepared.text_bytes, 7u);
  EXPECT_NE(prepared.tokenizer, nullptr);
  fs::remove(set_ + "/dataset.json");
  const OpenData megatron = open_data({.paths = {set_}}).value();
  EXPECT_STREQ(megatron.format, "megatron");
  EXPECT_EQ(megatron.file_bytes, prepared.file_bytes);
  EXPECT_EQ(megatron.documents->count(), 3u);
  EXPECT_EQ(megatron.tokenizer, nullptr);
  auto writer = data::create_llmc_shard(dir_.file(""), "x", 2).value();
  ASSERT_TRUE(writer->append(std::vector<int32_t>{1, 2}).ok());
  ASSERT_TRUE(writer->publish().ok());
  EXPECT_STREQ(open_data({.paths = {dir_.file("x.bin")}})->format, "llmc");
  EXPECT_THAT(message_of(open_data({.paths = {set_, dir_.file("x.bin")}}).status()), HasSubstr("different formats"));
  EXPECT_EQ(open_data({.paths = {dir_.file("none")}}).status().code(), absl::StatusCode::kNotFound);
  fs::create_directory(dir_.file("bare"));
  EXPECT_THAT(message_of(open_data({.paths = {dir_.file("bare")}}).status()),
              HasSubstr("neither dataset.json nor a .bin"));
}

TEST_F(InspectTest, AWholeSetPasses) {
  const auto data = check_data({.paths = {set_}});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->source->size(), 10u);
}

TEST_F(InspectTest, AnIdOutsideTheVocabularyIsNamedWithItsOffset) {
  patch(set_ + "/shard-00001.bin", 4, bytes_of(uint16_t{257}));
  const auto status = checked(set_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("shard-00001.bin"), HasSubstr("token 2 (offset 4) has id 257"),
                                        HasSubstr("vocabulary of 257")));
}

TEST_F(InspectTest, AChangedTokenIsFoundByTheSum) {
  patch(set_ + "/shard-00001.bin", 4, bytes_of(uint16_t{'?'}));
  EXPECT_THAT(message_of(checked(set_)),
              AllOf(HasSubstr("shard-00001.bin: its 10 bytes have CRC32C"), HasSubstr("but dataset.json says")));
}

TEST_F(InspectTest, ADocumentWithoutItsEnd) {
  patch(set_ + "/shard-00000.bin", 4, bytes_of(uint16_t{'?'}));
  EXPECT_THAT(message_of(checked(set_)), AllOf(HasSubstr("shard-00000.bin: document 0 (tokens 0 to 3) ends with id 63"),
                                               HasSubstr("not with end of document 256")));
}

TEST_F(InspectTest, AnIndexThatWasChanged) {
  // Bounds 0, 2, 2: the first document has both sequences, the second is empty. Legal in itself.
  patch(set_ + "/shard-00000.idx", 34 + 2 * 4 + 2 * 8 + 8, bytes_of(int64_t{2}));
  EXPECT_THAT(message_of(checked(set_)), HasSubstr("document 1 (tokens 5 to 5) ends with nothing"));
}

TEST_F(InspectTest, CutShortOrMissing) {
  fs::resize_file(set_ + "/shard-00001.bin", 8);
  EXPECT_THAT(message_of(checked(set_)), AllOf(HasSubstr("shard-00001.idx"), HasSubstr("has 8 bytes")));
  fs::remove(set_ + "/shard-00001.bin");
  const auto status = checked(set_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("shard-00001.bin"), HasSubstr("but dataset.json names it")));
}

TEST_F(InspectTest, RawFilesAreCheckedAgainstTheVocabularyGiven) {
  fs::remove(set_ + "/dataset.json");
  EXPECT_TRUE(checked(set_).ok());
  EXPECT_TRUE(check_data({.paths = {set_}, .vocabulary = 257}).ok());
  EXPECT_THAT(message_of(check_data({.paths = {set_}, .vocabulary = 256}).status()),
              AllOf(HasSubstr("shard-00000.bin"), HasSubstr("token 2 (offset 4) has id 256")));
  data::write_megatron(dir_.file(""), "big", 4, {{1, 1 << 24}});
  EXPECT_THAT(message_of(checked(dir_.file("big.bin"))), HasSubstr("has id 16777216"));
}

TEST_F(InspectTest, Measures) {
  const OpenData data = open_data({.paths = {set_}}).value();
  const DataStats stats = measure(data, 3).value();
  EXPECT_EQ(stats.tokens, 10u);
  EXPECT_EQ(stats.documents, 3u);
  EXPECT_EQ(stats.shortest, 2u);
  EXPECT_EQ(stats.p10, 2u);
  EXPECT_EQ(stats.median, 3u);
  EXPECT_EQ(stats.p90, 5u);
  EXPECT_EQ(stats.longest, 5u);
  EXPECT_THAT(stats.lengths, ElementsAre(Pair(2, 2), Pair(4, 1)));
  EXPECT_EQ(stats.distinct, 6u);
  EXPECT_THAT(stats.frequent, ElementsAre(Pair(256, 3), Pair('!', 2), Pair('i', 2)));
}

TEST_F(InspectTest, FindsTheDocumentOfAToken) {
  const OpenData data = open_data({.paths = {set_}}).value();
  std::vector<uint64_t> found;
  for (uint64_t at = 0; at < data.source->size(); ++at) found.push_back(document_at(*data.documents, at));
  EXPECT_THAT(found, ElementsAre(0, 0, 0, 1, 1, 2, 2, 2, 2, 2));
}

}  // namespace
}  // namespace telar::prepare
