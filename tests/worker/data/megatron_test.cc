#include <fcntl.h>
#include <unistd.h>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/message_of.h"
#include "tests/worker/data/shard_files.h"
#include "tests/worker/data/temp_dir.h"
#include "worker/data/megatron_format.h"
#include "worker/data/sharded_source.h"

namespace telar::data {
namespace {

using fakes::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<uint64_t> ends(const TokenSource& source) {
  const auto documents = source.documents(-1).value();
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < documents->count(); ++i) all.push_back(documents->end(i));
  return all;
}

std::string golden(const std::string& name) {
  const char* root = std::getenv("TELAR_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/golden/" + name;
}

TEST(MegatronGolden, FilesOfOtherCodeAreRead) {
  const auto u16 = open_megatron({golden("megatron_u16.bin")}, 65001).value();
  EXPECT_THAT(read_all(*u16), ElementsAre(5, 6, 7, 256, 1, 256, 9, 8, 65000, 256));
  EXPECT_THAT(ends(*u16), ElementsAre(4, 6, 10));
  const auto i32 = open_megatron({golden("megatron_i32.bin")}, 100001).value();
  EXPECT_THAT(read_all(*i32), ElementsAre(100000, 65536, 2, 3, 2));
  EXPECT_THAT(ends(*i32), ElementsAre(3, 5));
  const auto u8 = open_megatron({golden("megatron_u8.bin")}, 256).value();  // Two sequences a document; with modes.
  EXPECT_THAT(read_all(*u8), ElementsAre(1, 2, 3, 4, 255));
  EXPECT_THAT(ends(*u8), ElementsAre(4, 5));
  const auto i64 = open_megatron({golden("megatron_i64.bin")}, 17).value();  // The second document is empty.
  EXPECT_THAT(read_all(*i64), ElementsAre(11, 12, 13, 14, 15, 16));
  EXPECT_THAT(ends(*i64), ElementsAre(3, 3, 6));
}

TEST(MegatronGolden, OursAreByteForByteTheSame) {
  TempDir dir;
  write_megatron(dir.file(""), "u16", 2, {{5, 6, 7, 256}, {1, 256}, {9, 8, 65000, 256}});
  write_megatron(dir.file(""), "i32", 4, {{100000, 65536, 2}, {3, 2}});
  for (const std::string name : {"u16.bin", "u16.idx", "i32.bin", "i32.idx"}) {
    EXPECT_EQ(contents(dir.file(name)), contents(golden("megatron_" + name))) << name;
    EXPECT_FALSE(contents(dir.file(name)).empty());
  }
}

TEST(MegatronGolden, FloatingPointIsRefused) {
  const auto status = open_megatron({golden("megatron_f32.bin")}, 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("megatron_f32.idx"), HasSubstr("type code 7 at offset 17")));
}

TEST(Megatron, SeveralFilesAreOneSource) {
  TempDir dir;
  write_megatron(dir.file(""), "a", 2, {{1, 2, 3}, {4}});
  write_megatron(dir.file(""), "b", 4, {{5}, {6, 7}});
  const auto source = open_megatron({dir.file("*.bin")}, 8).value();
  const auto whole = read_all(*source);
  EXPECT_THAT(whole, ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(ends(*source), ElementsAre(3, 4, 5, 7));
  for (size_t first = 0; first <= whole.size(); ++first) {
    for (size_t count = 0; first + count <= whole.size(); ++count) {
      std::vector<int32_t> part(count);
      ASSERT_TRUE(source->read(first, part).ok());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(first)));
    }
  }
  std::vector<int32_t> beyond(2);
  EXPECT_EQ(source->read(6, beyond).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(source->read(UINT64_MAX, beyond).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(source->check_vocab(8).ok());
  EXPECT_THAT(message_of(source->check_vocab(7)),
              AllOf(HasSubstr("b.bin"), HasSubstr("token 2 (offset 8) has id 7, not below the vocabulary of 7")));
}

TEST(Megatron, ForeignIdsAreNamed) {
  TempDir dir;
  write_megatron(dir.file(""), "a", 4, {{1, 2, 3}});
  patch(dir.file("a.bin"), 4, bytes_of(int32_t{-5}));
  const auto source = open_megatron({dir.file("a.bin")}, 100).value();
  std::vector<int32_t> tokens(3);
  const auto status = source->read(0, tokens);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("a.bin"), HasSubstr("token 1 (offset 4) has id -5")));
  std::vector<int32_t> good(1);
  EXPECT_TRUE(source->read(2, good).ok());
}

TEST(IdTypes, EveryTypeIsWidenedAndItsLimitsAreSeen) {
  const std::string bytes = bytes_of(int64_t{-2}) + bytes_of(int64_t{0x7f});
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  for (const IdType type : {IdType::kU8, IdType::kI8, IdType::kI16, IdType::kI32, IdType::kI64, IdType::kU16}) {
    const bool is_signed = type != IdType::kU8 && type != IdType::kU16;
    const int64_t first = is_signed ? -2 : type == IdType::kU8 ? 0xfe : 0xfffe;
    EXPECT_EQ(id_at(type, data, 0), first);
    const uint64_t last = 8 / size_of(type);
    std::vector<int32_t> ids(1);
    EXPECT_EQ(widen(type, data, last, ids, 0x80), 1u);
    EXPECT_EQ(ids[0], 0x7f);
    EXPECT_EQ(widen(type, data, last, ids, 0x7f), 0u);
    EXPECT_EQ(widen(type, data, 0, ids, 0x10000), is_signed ? 0u : 1u);
  }
}

// Each case breaks a good pair; what is said names the index, the place and the value.
class BrokenIndex : public testing::Test {
 protected:
  BrokenIndex() { write_megatron(dir_.file(""), "x", 2, {{1, 2}, {3, 4, 5}, {6}}); }
  std::string refused(absl::StatusCode code = absl::StatusCode::kDataLoss) {
    const auto status = open_megatron({dir_.file("x.bin")}, 100).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(message_of(status), HasSubstr(dir_.file("x.idx")));
    return message_of(status);
  }
  void patch_index(size_t offset, const std::string& bytes) { patch(dir_.file("x.idx"), offset, bytes); }

  static constexpr size_t kPointers = 34 + 3 * 4, kBounds = kPointers + 3 * 8;
  TempDir dir_;
};

TEST_F(BrokenIndex, MagicVersionAndType) {
  patch_index(2, "J");
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("not an index of Megatron"));
  patch_index(2, "I");
  patch_index(kMegatronVersionAt, bytes_of(uint64_t{2}));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("this one has version 2"));
  patch_index(kMegatronVersionAt, bytes_of(uint64_t{1}));
  patch_index(kMegatronTypeAt, bytes_of(uint8_t{9}));
  EXPECT_THAT(refused(absl::StatusCode::kInvalidArgument), HasSubstr("type code 9"));
}

TEST_F(BrokenIndex, CountsThatTheFileDoesNotHold) {
  patch_index(kMegatronSequencesAt, bytes_of(uint64_t{4}));
  EXPECT_THAT(refused(), AllOf(HasSubstr("102 bytes"), HasSubstr("4 sequences and 4 document bounds = 114 bytes")));
  patch_index(kMegatronSequencesAt, bytes_of(UINT64_MAX / 12 + 2));  // Its bytes would overflow to a small number.
  EXPECT_THAT(refused(), HasSubstr("1537228672809129303 sequences"));
  patch_index(kMegatronSequencesAt, bytes_of(uint64_t{3}));
  std::filesystem::resize_file(dir_.file("x.idx"), 101);
  EXPECT_THAT(refused(), HasSubstr("101 bytes"));
  std::filesystem::resize_file(dir_.file("x.idx"), 33);
  EXPECT_THAT(refused(), HasSubstr("shorter than the header of 34"));
}

TEST_F(BrokenIndex, TooShortBin) {
  std::filesystem::resize_file(dir_.file("x.bin"), 10);
  EXPECT_THAT(refused(), AllOf(HasSubstr("sequence 2 (offset 62) begins at byte 10 and has 1 tokens of 2 bytes"),
                               HasSubstr("x.bin has 10 bytes")));
}

TEST_F(BrokenIndex, PointersOutOfOrderOrRange) {
  patch_index(kPointers + 8, bytes_of(int64_t{6}));
  EXPECT_THAT(refused(), AllOf(HasSubstr("sequence 1 (offset 54) begins at byte 6"), HasSubstr("ends at byte 4")));
  patch_index(kPointers + 8, bytes_of(int64_t{-4}));
  EXPECT_THAT(refused(), HasSubstr("begins at byte -4"));
  patch_index(kPointers + 8, bytes_of(int64_t{1} << 40));
  EXPECT_THAT(refused(), HasSubstr("begins at byte 1099511627776"));
  patch_index(kPointers + 8, bytes_of(int64_t{4}));
  patch_index(34, bytes_of(int32_t{-2}));
  EXPECT_THAT(refused(), HasSubstr("sequence 0 (offset 46) begins at byte 0 and has -2 tokens"));
}

TEST_F(BrokenIndex, BoundsOutOfOrder) {
  patch_index(kBounds, bytes_of(int64_t{1}));
  EXPECT_THAT(refused(), HasSubstr("document bound 0 (offset 70) is 1"));
  patch_index(kBounds, bytes_of(int64_t{0}));
  patch_index(kBounds + 16, bytes_of(int64_t{0}));
  EXPECT_THAT(refused(), HasSubstr("document bound 2 (offset 86) is 0 behind 1"));
  patch_index(kBounds + 16, bytes_of(int64_t{4}));
  EXPECT_THAT(refused(), HasSubstr("document bound 2 (offset 86) is 4 behind 1; bounds ascend from 0 to the 3"));
  patch_index(kBounds + 16, bytes_of(int64_t{2}));
  patch_index(kBounds + 24, bytes_of(int64_t{2}));
  EXPECT_THAT(refused(), HasSubstr("document bound 3 (offset 94) is 2"));
}

TEST_F(BrokenIndex, MissingOrEmptyFiles) {
  std::filesystem::resize_file(dir_.file("x.bin"), 0);
  EXPECT_THAT(message_of(open_megatron({dir_.file("x.bin")}, 9).status()),
              AllOf(HasSubstr("x.bin"), HasSubstr("empty")));
  std::filesystem::remove(dir_.file("x.idx"));
  EXPECT_THAT(refused(absl::StatusCode::kNotFound), HasSubstr("No such file"));
  EXPECT_THAT(message_of(open_megatron({dir_.file("x.idx")}, 9).status()), HasSubstr("named by its .bin"));
}

// Five gigabytes and more than 2^31 bytes and tokens, none of them on the disk.
TEST(Megatron, CountsInSixtyFourBits) {
  TempDir dir;
  constexpr int64_t kLongest = 2'000'000'000, kTokens = 2 * kLongest + 3;
  std::string index(kMegatronMagic, kMegatronMagicBytes);
  index += bytes_of(uint64_t{1}) + bytes_of(uint8_t{8}) + bytes_of(uint64_t{3}) + bytes_of(uint64_t{4});
  for (const int64_t length : {kLongest, kLongest, int64_t{3}}) index += bytes_of(static_cast<int32_t>(length));
  for (const int64_t pointer : {int64_t{0}, 2 * kLongest, 4 * kLongest}) index += bytes_of(pointer);
  for (const int64_t bound : {0, 1, 2, 3}) index += bytes_of(bound);
  dir.write("x.idx", index);
  const auto path = dir.write("x.bin", "");
  ASSERT_EQ(::truncate(path.c_str(), 2 * kTokens), 0);
  const int file = ::open(path.c_str(), O_WRONLY);
  const uint16_t ids[] = {41, 42};
  ASSERT_EQ(::pwrite(file, ids, 4, 2 * (kTokens - 2)), 4);
  ::close(file);
  const auto source = open_megatron({path, path}, 50).value();
  EXPECT_EQ(source->size(), 2u * kTokens);
  EXPECT_THAT(ends(*source),
              ElementsAre(kLongest, 2 * kLongest, kTokens, kTokens + kLongest, kTokens + 2 * kLongest, 2 * kTokens));
  std::vector<int32_t> tokens(4);
  ASSERT_TRUE(source->read(kTokens - 3, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre(0, 41, 42, 0));
  EXPECT_THAT(message_of(open_megatron({path}, 42).value()->read(kTokens - 1, {tokens.data(), 1})),
              HasSubstr("token 4000000002 (offset 8000000004) has id 42"));
}

// More than 2^31 sequences: an index of 40 GB, all of it zeros but for its head and its last sequence.
TEST(Megatron, IndexesInSixtyFourBits) {
  TempDir dir;
  constexpr uint64_t kSequences = (uint64_t{1} << 31) + 5;
  std::string head(kMegatronMagic, kMegatronMagicBytes);
  head += bytes_of(uint64_t{1}) + bytes_of(uint8_t{4}) + bytes_of(kSequences) + bytes_of(kSequences + 1);
  const auto index = dir.write("x.idx", head);
  const uint64_t pointers = 34 + 4 * kSequences, size = pointers + 8 * kSequences + 8 * (kSequences + 1);
  if (::truncate(index.c_str(), static_cast<off_t>(size)) != 0) GTEST_SKIP() << "no sparse files of 40 GB here";
  const int file = ::open(index.c_str(), O_WRONLY);
  const int64_t pointer = int64_t{1} << 33;
  ASSERT_EQ(::pwrite(file, &pointer, 8, static_cast<off_t>(pointers + 8 * (kSequences - 1))), 8);
  ::close(file);
  EXPECT_THAT(message_of(open_megatron({dir.write("x.bin", "1234")}, 50).status()),
              HasSubstr("sequence 2147483652 (offset 25769803862) begins at byte 8589934592 and has 0 tokens"));
}

TEST(ShardWriter, LlmcInBothVersions) {
  TempDir dir;
  for (const int id_bytes : {2, 4}) {
    const std::string name = id_bytes == 2 ? "narrow" : "wide", path = dir.file(name + ".bin");
    auto writer = create_llmc_shard(dir.file(""), name, id_bytes).value();
    ASSERT_TRUE(writer->append(std::vector<int32_t>{1, 2, 60000}).ok());
    ASSERT_TRUE(writer->append(std::vector<int32_t>{4}).ok());
    EXPECT_FALSE(std::filesystem::exists(path)) << "seen before it is whole";
    const ShardFiles files = writer->publish().value();
    EXPECT_EQ(files.documents, 2u);
    EXPECT_EQ(files.tokens, 4u);
    EXPECT_EQ(files.bin_bytes, 1024u + 4u * static_cast<unsigned>(id_bytes));
    EXPECT_EQ(files.bin_bytes, std::filesystem::file_size(path));
    EXPECT_EQ(contents(path).substr(0, 12), id_bytes == 2 ? bytes_of(20240520) + bytes_of(1) + bytes_of(4)
                                                          : bytes_of(20240801) + bytes_of(7) + bytes_of(4));
    const auto source = open_llmc_bin({path}, 60001).value();
    EXPECT_THAT(read_all(*source), ElementsAre(1, 2, 60000, 4));
  }
}

TEST(ShardWriter, LlmcRefusesWhatItsCountCannotHold) {
  TempDir dir;
  auto writer = create_llmc_shard(dir.file(""), "x", 2, 4).value();
  ASSERT_TRUE(writer->append(std::vector<int32_t>{1, 2, 3}).ok());
  const auto status = writer->append(std::vector<int32_t>{4, 5});
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(message_of(status),
              AllOf(HasSubstr("shard x"), HasSubstr("2 tokens behind 3"), HasSubstr("counts to 4")));
  ASSERT_TRUE(writer->append(std::vector<int32_t>{4}).ok());
  EXPECT_EQ(writer->publish()->tokens, 4u);
}

TEST(ShardWriter, NothingIsSeenOfWhatWasNotPublished) {
  TempDir dir;
  for (const bool megatron : {true, false}) {
    auto writer = megatron ? create_megatron_shard(dir.file(""), "x", 2).value()
                           : create_llmc_shard(dir.file(""), "x", 2).value();
    ASSERT_TRUE(writer->append(std::vector<int32_t>(1 << 19, 7)).ok());
    EXPECT_TRUE(std::filesystem::exists(dir.file(std::string(kUnpublishedPrefix) + "x.bin")));
    writer.reset();
    EXPECT_TRUE(std::filesystem::is_empty(dir.file("")));
  }
  EXPECT_EQ(create_megatron_shard(dir.file("none"), "x", 2).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace telar::data
