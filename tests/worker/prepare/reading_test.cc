// Bytes out of files, and documents out of bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/message_of.h"
#include "tests/worker/data/temp_dir.h"
#include "tests/worker/prepare/pack.h"
#include "worker/prepare/byte_stream.h"
#include "worker/prepare/document_reader.h"

namespace telar::prepare {
namespace {

using data::TempDir;
using fakes::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string long_text() {
  std::string all;
  for (int i = 0; i < 200000; ++i) all += std::to_string(i * 7919) + "\n";
  return all;
}

absl::StatusOr<std::string> unpacked(const std::string& path, uint64_t skip = 0, size_t at_once = 70000) {
  auto stream = open_stream(path);
  if (!stream.ok()) return stream.status();
  if (auto status = (*stream)->skip(skip); !status.ok()) return status;
  std::string all;
  std::vector<char> block(at_once);
  for (;;) {
    const auto count = (*stream)->read(block);
    if (!count.ok()) return count.status();
    if (*count == 0) return all;
    all.append(block.data(), *count);
  }
}

TEST(ByteStream, PlainGzipAndZstd) {
  TempDir dir;
  const std::string whole = long_text();
  const std::string half = whole.substr(0, whole.size() / 2), rest = whole.substr(half.size());
  for (const std::string& path :
       {dir.write("a", whole), dir.write("b.gz", gzip(whole)), dir.write("c.zst", zstd(whole)),
        dir.write("members.gz", gzip(half) + gzip("") + gzip(rest)), dir.write("frames", zstd(half) + zstd(rest)),
        dir.write("unnamed", gzip(whole))}) {
    EXPECT_TRUE(unpacked(path).value() == whole) << path;
    EXPECT_TRUE(unpacked(path, 0, 3).value() == whole) << path;
    EXPECT_TRUE(unpacked(path, 1234567).value() == whole.substr(1234567)) << path;
    EXPECT_EQ(unpacked(path, whole.size()).value(), "") << path;
  }
  EXPECT_EQ(unpacked(dir.write("empty", "")).value(), "");
  EXPECT_EQ(unpacked(dir.write("empty.gz", gzip(""))).value(), "");
  EXPECT_EQ(unpacked(dir.write("empty.zst", zstd(""))).value(), "");
}

TEST(ByteStream, CutOrDamagedFilesAreNamedWithTheOffset) {
  TempDir dir;
  const std::string whole = long_text();
  for (const bool gz : {true, false}) {
    const std::string packed = gz ? gzip(whole) : zstd(whole), name = gz ? "x.gz" : "x.zst";
    for (const size_t size : {packed.size() - 1, packed.size() / 2, size_t{20}}) {
      const auto path = dir.write(name, packed.substr(0, size));
      const auto status = unpacked(path).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
      EXPECT_THAT(message_of(status),
                  AllOf(HasSubstr(path), HasSubstr("ends too soon at offset " + std::to_string(size))));
    }
    std::string hurt = packed;
    hurt[hurt.size() / 2] = static_cast<char>(hurt[hurt.size() / 2] ^ 0x55);
    hurt[hurt.size() / 2 + 1] = static_cast<char>(hurt[hurt.size() / 2 + 1] ^ 0x55);
    const auto status = unpacked(dir.write(name, hurt)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(message_of(status), AllOf(HasSubstr(name), HasSubstr("damaged")));
    EXPECT_THAT(message_of(unpacked(dir.write(name, packed + "tail")).status()), HasSubstr(name));
    EXPECT_THAT(message_of(unpacked(dir.write(name, "plain text")).status()),
                HasSubstr(gz ? "does not begin as gzip" : "does not begin as Zstandard"));
  }
}

TEST(ByteStream, WhatIsNotRead) {
  TempDir dir;
  EXPECT_THAT(message_of(open_stream(dir.write("x.parquet", "PAR1")).status()), HasSubstr("JSONL"));
  EXPECT_THAT(message_of(open_stream(dir.write("x.data", "PAR1....")).status()), HasSubstr("Parquet is not read"));
  EXPECT_THAT(message_of(open_stream(dir.file("")).status()), HasSubstr("is a directory"));
  EXPECT_EQ(open_stream(dir.file("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unpacked(dir.write("short", "abc"), 4).status().code(), absl::StatusCode::kOutOfRange);
}

struct Read {
  std::string text;
  uint64_t line;
  Position after;
  bool operator==(const Read&) const = default;
};

std::vector<Read> read_all(const std::vector<Input>& inputs, TextSplit split, const std::string& separator = "",
                           Position from = {}) {
  DocumentReader reader(inputs, split, separator, from);
  std::vector<Read> all;
  Chunk chunk;
  while (reader.next(chunk)) {
    EXPECT_TRUE(chunk.status.ok()) << chunk.status;
    for (const Piece& piece : chunk.pieces) {
      all.push_back({chunk.bytes.substr(piece.begin, piece.size), piece.line, piece.after});
    }
  }
  return all;
}

std::vector<std::string> texts(const std::vector<Read>& documents) {
  std::vector<std::string> all;
  for (const Read& one : documents) all.push_back(one.text);
  return all;
}

// Reading that is taken up behind any document gives the rest.
void expect_resumable(const std::vector<Input>& inputs, TextSplit split, const std::string& separator = "") {
  const auto whole = read_all(inputs, split, separator);
  for (size_t i = 0; i < whole.size(); i += 1 + whole.size() / 50) {
    const auto rest = read_all(inputs, split, separator, whole[i].after);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + static_cast<ptrdiff_t>(i) + 1, whole.end())) << i;
  }
}

TEST(DocumentReader, AFileIsADocument) {
  TempDir dir;
  const std::string large(3 * kChunkBytes + 7, 'x');
  const std::vector<Input> inputs = {
      {dir.write("a", "one\n\ntwo\n")}, {dir.write("b", large)}, {dir.write("c", "")}, {dir.write("d", "end")}};
  EXPECT_THAT(texts(read_all(inputs, TextSplit::kFile)), ElementsAre("one\n\ntwo\n", large, "", "end"));
  expect_resumable(inputs, TextSplit::kFile);
}

TEST(DocumentReader, Paragraphs) {
  TempDir dir;
  const std::vector<Input> inputs = {{dir.write("a", "\n \none\nstill one\n\n\t\r\n\ntwo\r\n\r\nthree")},
                                     {dir.write("b", "\n\n")},
                                     {dir.write("c", "four\n")}};
  const auto all = read_all(inputs, TextSplit::kParagraph);
  EXPECT_THAT(texts(all), ElementsAre("one\nstill one", "two", "three", "four"));
  EXPECT_EQ(all[0].line, 3u);
  EXPECT_EQ(all[1].line, 8u);
  EXPECT_EQ(all[2].line, 10u);
  EXPECT_EQ(all[3].line, 1u);
  expect_resumable(inputs, TextSplit::kParagraph);
}

TEST(DocumentReader, ASeparatorLine) {
  TempDir dir;
  const std::vector<Input> inputs = {{dir.write("a", "one\n\nmore\n<end>\ntwo <end>\n<end>\r\n<end>\nlast\n")},
                                     {dir.write("b", "next\n<end>")}};
  const auto all = read_all(inputs, TextSplit::kSeparator, "<end>");
  EXPECT_THAT(texts(all), ElementsAre("one\n\nmore", "two <end>", "", "last", "next"));
  EXPECT_EQ(all[1].line, 5u);
  EXPECT_EQ(all[3].line, 8u);
  expect_resumable(inputs, TextSplit::kSeparator, "<end>");
}

TEST(DocumentReader, LinesOfJsonl) {
  TempDir dir;
  std::string many;
  for (int i = 0; i < 30000; ++i) many += "{\"text\": \"" + std::to_string(i) + std::string(i % 90, 'y') + "\"}\n";
  const std::vector<Input> inputs = {{dir.write("a.jsonl", "{1}\n\n  \n{2}"), true},
                                     {dir.write("b.jsonl", many), true}};
  const auto all = read_all(inputs, TextSplit::kFile);
  ASSERT_EQ(all.size(), 30002u);
  EXPECT_EQ(all[0].text, "{1}");
  EXPECT_EQ(all[1].text, "{2}");
  EXPECT_EQ(all[1].line, 4u);
  EXPECT_EQ(all.back().line, 30000u);
  EXPECT_EQ(all.back().after.offset, many.size());
  expect_resumable(inputs, TextSplit::kFile);
}

TEST(DocumentReader, WhatCannotBeReadComesBehindWhatCould) {
  TempDir dir;
  std::string many;
  for (int i = 0; i < 60000; ++i) many += std::to_string(i * 7919) + "\n";
  const std::string packed = gzip(many);
  const std::vector<Input> inputs = {{dir.write("a", "first\n")},
                                     {dir.write("x.gz", packed.substr(0, packed.size() / 2)), true}};
  DocumentReader reader(inputs, TextSplit::kParagraph, "", {});
  Chunk chunk;
  std::vector<std::string> found;
  while (reader.next(chunk)) {
    for (const Piece& piece : chunk.pieces) found.push_back(chunk.bytes.substr(piece.begin, piece.size));
  }
  EXPECT_EQ(chunk.status.code(), absl::StatusCode::kDataLoss);
  ASSERT_GT(found.size(), 1000u);
  EXPECT_EQ(found[0], "first");
  for (size_t i = 1; i < found.size(); ++i) ASSERT_EQ(found[i], std::to_string((i - 1) * 7919));
}

}  // namespace
}  // namespace telar::prepare
