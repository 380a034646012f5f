#include "worker/data/token_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstring>
#include <filesystem>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/message_of.h"
#include "tests/worker/data/shard_files.h"
#include "tests/worker/data/temp_dir.h"

namespace telar::data {
namespace {

using fakes::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string llmc_header(uint32_t magic, uint32_t version, uint32_t tokens) {
  std::string header(1024, '\0');
  std::memcpy(header.data(), &magic, 4);
  std::memcpy(header.data() + 4, &version, 4);
  std::memcpy(header.data() + 8, &tokens, 4);
  return header;
}

template <typename T>
std::string shard(const std::vector<T>& tokens) {
  std::string bytes =
      sizeof(T) == 2 ? llmc_header(20240520, 1, tokens.size()) : llmc_header(20240801, 7, tokens.size());
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
  return bytes;
}

TEST(TextSource, DocumentsEndWithEndOfDocument) {
  TempDir dir;
  const auto source = open_text({dir.write("b", "hi"), dir.write("a", "\xff")}, 257).value();
  EXPECT_THAT(read_all(*source), ElementsAre('h', 'i', 256, 255, 256));
}

TEST(TextSource, AnyRangeEqualsTheSameRangeOfTheWhole) {
  TempDir dir;
  const auto source = open_text({dir.write("a", "abc"), dir.write("b", "d"), dir.write("c", "efgh")}, 300).value();
  const auto whole = read_all(*source);
  ASSERT_EQ(whole.size(), 11u);
  for (size_t first = 0; first <= whole.size(); ++first) {
    for (size_t count = 0; first + count <= whole.size(); ++count) {
      std::vector<int32_t> part(count);
      ASSERT_TRUE(source->read(first, part).ok());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first << " + " << count;
    }
  }
  std::vector<int32_t> beyond(2);
  EXPECT_EQ(source->read(10, beyond).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(source->read(UINT64_MAX, beyond).code(), absl::StatusCode::kOutOfRange);
}

TEST(TextSource, NeedsTheByteVocabulary) {
  TempDir dir;
  EXPECT_THAT(message_of(open_text({dir.write("a", "x")}, 256).status()), AllOf(HasSubstr("256"), HasSubstr("257")));
  const auto source = open_text({dir.file("a")}, 257).value();
  EXPECT_TRUE(source->check_vocab(257).ok());
  EXPECT_THAT(message_of(source->check_vocab(256)), HasSubstr("token 1 (offset 1) has id 256"));
  EXPECT_THAT(message_of(source->check_vocab(100)), HasSubstr("token 0 (offset 0) has id 120"));
}

TEST(LlmcBin, ReadsBothVersionsMixed) {
  TempDir dir;
  const auto u16 = dir.write("u16.bin", shard<uint16_t>({50256, 0, 65535}));
  const auto u32 = dir.write("u32.bin", shard<uint32_t>({128000, 7}));
  const auto source = open_llmc_bin({u16, u32}, 128256).value();
  EXPECT_THAT(read_all(*source), ElementsAre(50256, 0, 65535, 128000, 7));
}

std::vector<uint64_t> ends(const TokenSource& source, int32_t end_of_document) {
  const auto documents = source.documents(end_of_document).value();
  std::vector<uint64_t> found;
  for (uint64_t i = 0; i < documents->count(); ++i) found.push_back(documents->end(i));
  return found;
}

TEST(TextSource, AFileIsADocument) {
  TempDir dir;
  const auto source = open_text({dir.write("b", "hi"), dir.write("a", "\xff"), dir.write("c", "abcd")}, 257).value();
  EXPECT_THAT(ends(*source, -1), ElementsAre(3, 5, 10));
}

TEST(LlmcBin, DocumentsEndOrBeginWithTheToken) {
  TempDir dir;
  const auto shard_of = [&](const char* name, const std::vector<uint16_t>& tokens) {
    return dir.write(name, shard<uint16_t>(tokens));
  };
  // A document may go on in the next shard.
  const auto first = shard_of("1", {5, 6, 9, 9, 7}), second = shard_of("2", {8, 9, 3}), third = shard_of("3", {9, 1});
  EXPECT_THAT(ends(*open_llmc_bin({first, second, third}, 10).value(), 9), ElementsAre(3, 4, 7, 9, 10));
  EXPECT_THAT(ends(*open_llmc_bin({third, first, second}, 10).value(), 9), ElementsAre(4, 5, 8, 10));
  EXPECT_THAT(ends(*open_llmc_bin({first}, 10).value(), 4), ElementsAre(5));
  EXPECT_THAT(ends(*open_llmc_bin({shard_of("4", {1, 9})}, 10).value(), 9), ElementsAre(2));
  EXPECT_THAT(ends(*open_llmc_bin({shard_of("5", {9})}, 10).value(), 9), ElementsAre(1));
  const auto status = open_llmc_bin({first}, 10).value()->documents(-1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr(first), HasSubstr("tokenizer.end_of_document")));
}

TEST(TokenSource, WillNeedTakesAnyRange) {
  TempDir dir;
  const auto source =
      open_llmc_bin(
          {dir.write("a", shard<uint16_t>(std::vector<uint16_t>(9000, 1))), dir.write("b", shard<uint32_t>({2}))}, 10)
          .value();
  for (const uint64_t first : {0, 5000, 8999, 9000, 9001, 20000}) {
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{9001}, UINT64_MAX}) source->will_need(first, count);
  }
  EXPECT_EQ(read_all(*source).size(), 9001u);
}

TEST(LlmcBin, NamesTheIdThatTheModelDoesNotHave) {
  TempDir dir;
  const auto good = dir.write("good.bin", shard<uint16_t>({1, 2, 3}));
  const auto bad = dir.write("bad.bin", shard<uint32_t>({5, 99, 100, 0xfffffff0u}));
  const auto source = open_llmc_bin({good, bad}, 100).value();
  std::vector<int32_t> tokens(5);
  EXPECT_TRUE(source->read(0, tokens).ok());
  tokens.resize(6);
  const auto status = source->read(0, tokens);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message_of(status),
              AllOf(HasSubstr(bad), HasSubstr("token 2 (offset 1032) has id 100"), HasSubstr("vocabulary of 100")));
  EXPECT_EQ(message_of(source->check_vocab(100)), message_of(status));
  EXPECT_THAT(message_of(source->check_vocab(1 << 20)), HasSubstr("token 3 (offset 1036) has id 4294967280"));
  EXPECT_THAT(message_of(source->check_vocab(3)), AllOf(HasSubstr(good), HasSubstr("token 2 (offset 1028) has id 3")));
}

TEST(LlmcBin, RefusesWhatIsNotAShard) {
  TempDir dir;
  const std::string good = shard<uint16_t>({1, 2, 3});
  auto refused = [&](const std::string& bytes) {
    const std::string path = dir.write("x.bin", bytes);
    const auto status = open_llmc_bin({path}, 10).status();
    EXPECT_THAT(message_of(status), HasSubstr(path));
    return message_of(status);
  };
  EXPECT_THAT(refused(good.substr(0, good.size() - 1)), AllOf(HasSubstr("1029 bytes"), HasSubstr("3 tokens = 1030")));
  EXPECT_THAT(refused(good + "x"), AllOf(HasSubstr("1031 bytes"), HasSubstr("1030 bytes")));
  EXPECT_THAT(refused(good.substr(0, 1000)), HasSubstr("shorter than the header of 1024"));
  EXPECT_THAT(refused(""), HasSubstr("empty"));
  EXPECT_THAT(refused(shard<uint16_t>({})), HasSubstr("0 tokens"));
  EXPECT_THAT(refused(llmc_header(20240522, 1, 0)), HasSubstr("magic 20240522 version 1"));
  EXPECT_THAT(refused(llmc_header(20240520, 7, 0)), HasSubstr("version 7"));
  EXPECT_THAT(refused(llmc_header(20240801, 1, 0)), HasSubstr("magic 20240801 version 1"));
}

TEST(LlmcBin, CountsInSixtyFourBits) {
  TempDir dir;
  constexpr uint64_t kTokens = 1'300'000'000;  // 5.2 GB of four-byte ids; the file is sparse.
  const auto path = dir.write("big.bin", llmc_header(20240801, 7, kTokens));
  ASSERT_EQ(::truncate(path.c_str(), 1024 + 4 * kTokens), 0);
  const int file = ::open(path.c_str(), O_WRONLY);
  const uint32_t ids[] = {41, 42};
  ASSERT_EQ(::pwrite(file, ids, 8, 1024 + 4 * (kTokens - 2)), 8);
  ::close(file);
  const auto small = dir.write("small.bin", shard<uint16_t>({43, 44}));
  const auto source = open_llmc_bin({path, small}, 50).value();
  EXPECT_EQ(source->size(), kTokens + 2);
  std::vector<int32_t> tokens(5);
  ASSERT_TRUE(source->read(kTokens - 3, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre(0, 41, 42, 43, 44));
}

// Word 2 of a shard is unsigned: more tokens than 2^31 - 1.
TEST(LlmcBin, CountsPastTheSignBit) {
  TempDir dir;
  constexpr uint64_t kTokens = 3'000'000'000;
  const auto path = dir.write("big.bin", llmc_header(20240520, 1, kTokens));
  ASSERT_EQ(::truncate(path.c_str(), 1024 + 2 * kTokens), 0);
  const int file = ::open(path.c_str(), O_WRONLY);
  const uint16_t ids[] = {41, 60};
  ASSERT_EQ(::pwrite(file, ids, 4, 1024 + 2 * (kTokens - 2)), 4);
  ::close(file);
  const auto source = open_llmc_bin({path}, 50).value();
  EXPECT_EQ(source->size(), kTokens);
  std::vector<int32_t> tokens(2);
  ASSERT_TRUE(source->read(kTokens - 3, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre(0, 41));
  source->will_need(kTokens - 2, 10);
  EXPECT_THAT(message_of(source->read(kTokens - 2, tokens)),
              HasSubstr("token 2999999999 (offset 6000001022) has id 60"));
}

TEST(TextSource, PastFourGigabytes) {
  TempDir dir;
  constexpr uint64_t kBytes = 5'000'000'000;
  const auto path = dir.write("big.txt", "a");
  ASSERT_EQ(::truncate(path.c_str(), kBytes), 0);
  const auto source = open_text({path, dir.write("small.txt", "b")}, 257).value();
  EXPECT_EQ(source->size(), kBytes + 3);
  std::vector<int32_t> tokens(4);
  ASSERT_TRUE(source->read(kBytes - 1, tokens).ok());
  EXPECT_THAT(tokens, ElementsAre(0, 256, 'b', 256));
  EXPECT_EQ(source->documents(256).value()->end(0), kBytes + 1);
}

TEST(Paths, GlobsInByteOrderAndLiteralsFirst) {
  TempDir dir;
  for (const char* name : {"b2", "B1", "a10", "a2", "b[1]"}) dir.write(name, "x");
  EXPECT_THAT(
      expand_paths({dir.file("b2"), dir.file("*")}).value(),
      ElementsAre(dir.file("b2"), dir.file("B1"), dir.file("a10"), dir.file("a2"), dir.file("b2"), dir.file("b[1]")));
  EXPECT_THAT(expand_paths({dir.file("b[1]")}).value(), ElementsAre(dir.file("b[1]")));
  EXPECT_THAT(expand_paths({dir.file("[ab]2")}).value(), ElementsAre(dir.file("a2"), dir.file("b2")));
}

TEST(Paths, ErrorsNameThePath) {
  TempDir dir;
  const auto missing = open_text({dir.file("none")}, 257).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message_of(missing), HasSubstr(dir.file("none")));
  const auto unmatched = open_text({dir.file("*.txt")}, 257).status();
  EXPECT_EQ(unmatched.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message_of(unmatched), AllOf(HasSubstr(dir.file("*.txt")), HasSubstr("matches no file")));
  EXPECT_THAT(message_of(open_text({dir.write("empty", "")}, 257).status()),
              AllOf(HasSubstr("/empty"), HasSubstr("empty")));
  EXPECT_THAT(message_of(open_text({dir.file("")}, 257).status()), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of(open_text({}, 257).status()), HasSubstr("no data paths"));
  EXPECT_EQ(open_text({dir.file("none/*.txt")}, 257).status().code(), absl::StatusCode::kNotFound);
}

TEST(Paths, UnreadableIsPermissionDenied) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  TempDir dir;
  const auto path = dir.write("secret", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const auto status = open_text({path}, 257).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(message_of(status), HasSubstr(path));
  const auto closed = dir.file("closed");
  std::filesystem::create_directory(closed);
  ASSERT_EQ(::chmod(closed.c_str(), 0), 0);
  EXPECT_EQ(open_text({closed + "/*"}, 257).status().code(), absl::StatusCode::kPermissionDenied);
  ::chmod(closed.c_str(), 0700);  // So that it can be removed.
}

}  // namespace
}  // namespace telar::data
