#include "worker/checkpoint/safetensors.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/crc32c.h"
#include "tests/worker/checkpoint/memory_files.h"

namespace telar::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data, uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}
std::string file_of(const std::string& header, const std::string& data) { return file_of(header, data, header.size()); }

class Safetensors : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> opened(const std::string& bytes) {
    EXPECT_TRUE(write_file(files_, "x", bytes).ok());
    return SafetensorsFile::open(files_, "x");
  }
  std::string refused(const std::string& bytes) {
    const auto status = opened(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("safetensors file x: "));
    return std::string(status.message());
  }
  std::string written(std::vector<TensorInfo> tensors, const std::map<std::string, std::string>& metadata,
                      const std::string& data) {
    auto writer = SafetensorsWriter::create(files_, "w", std::move(tensors), metadata).value();
    EXPECT_TRUE(writer->append(std::as_bytes(std::span(data))).ok());
    const auto finished = writer->finish().value();
    EXPECT_EQ(finished.bytes, files_.bytes("w")->size());
    EXPECT_EQ(finished.crc32c, crc32c(*files_.bytes("w")));
    return *files_.bytes("w");
  }
  MemoryFiles files_;
};

TEST_F(Safetensors, WritesTheEmptyFile) {
  EXPECT_EQ(written({}, {}, ""), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST_F(Safetensors, WritesTheReferenceVector) {
  const std::string data(24, 'd');
  const std::string bytes = written({{"attn.0", "F32", {1, 2, 3}}}, {}, data);
  const std::string header = R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})";
  EXPECT_EQ(bytes, file_of(header + std::string(64 - header.size(), ' '), data));
}

TEST_F(Safetensors, RoundTrips) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"quote\"", "\n"}};
  const std::string data = "0123456789abcdef";
  const auto bytes = written(
      {{"scalar", "F64", {}}, {"none", "F32", {0, 3}}, {"a\"b", "BF16", {2, 1}}, {"u", "U8", {4}}}, metadata, data);
  EXPECT_EQ((bytes.size() - data.size()) % 8, 0u);
  const auto file = opened(bytes).value();
  EXPECT_EQ(file->metadata(), metadata);
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->tensors()[0].name, "scalar");
  const TensorInfo* tensor = file->find("a\"b");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{2, 1}));
  std::string part(3, '\0');
  ASSERT_TRUE(file->read(*tensor, 1, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, "9ab");
  EXPECT_EQ(file->read(*tensor, 2, std::as_writable_bytes(std::span(part))).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(file->find("missing"), nullptr);
}

TEST_F(Safetensors, AcceptsWhatOthersWrite) {
  // Metadata last, entries out of order, unknown members, white space, dtypes below a byte.
  const auto file = opened(file_of(R"({ "b" : {"dtype":"F4","shape":[3,2],"data_offsets":[4,7],"note":1},
      "a":{"data_offsets":[0,4],"shape":[4],"dtype":"F8_E8M0"}, "__metadata__":{}}  )",
                                   "1234567"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors()[1].name, "b");
}

// 7 GB, all of it hole but its two ends.
TEST_F(Safetensors, PastFourGigabytes) {
  const std::string header = R"({"wide":{"dtype":"U8","shape":[3,2333333333],"data_offsets":[0,6999999999]},)"
                             R"("end":{"dtype":"U8","shape":[5],"data_offsets":[6999999999,7000000004]}})";
  const std::string path = testing::TempDir() + "/telar_sparse.safetensors", start = file_of(header, "");
  std::ofstream(path, std::ios::binary) << start;
  std::filesystem::resize_file(path, start.size() + 7'000'000'000 - 1);
  std::ofstream(path, std::ios::binary | std::ios::app) << "abcde";
  const auto file = SafetensorsFile::open(FileSystem::posix(), path);
  std::filesystem::remove(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::string bytes(6, '?');
  ASSERT_TRUE((*file)->read(*(*file)->find("end"), 0, std::as_writable_bytes(std::span(bytes).first(5))).ok());
  EXPECT_EQ(bytes, "abcde?");
  const TensorInfo& wide = *(*file)->find("wide");
  EXPECT_TRUE((*file)->read(wide, 6'999'999'993, std::as_writable_bytes(std::span(bytes))).ok());
  EXPECT_EQ(bytes, std::string(6, '\0'));
  EXPECT_FALSE((*file)->read(wide, 6'999'999'994, std::as_writable_bytes(std::span(bytes))).ok());
}

TEST_F(Safetensors, RefusesBadLengths) {
  EXPECT_THAT(refused(""), HasSubstr("0 bytes"));
  EXPECT_THAT(refused("1234567"), HasSubstr("7 bytes"));
  EXPECT_THAT(refused(file_of("{}", "", 3)), HasSubstr("header of 3 bytes in a file of 10"));
  EXPECT_THAT(refused(file_of("{}", "", 100'000'001)), HasSubstr("more than 100000000"));
  EXPECT_THAT(refused(file_of("{}", "", UINT64_MAX)), HasSubstr("more than 100000000"));
}

TEST_F(Safetensors, RefusesBadJson) {
  EXPECT_THAT(refused(file_of("", "")), HasSubstr("does not begin with {"));
  EXPECT_THAT(refused(file_of(" {}", "")), HasSubstr("does not begin with {"));
  EXPECT_THAT(refused(file_of("{", "")), HasSubstr("no JSON"));
  EXPECT_THAT(refused(file_of("{} x", "")), HasSubstr("no JSON"));
  EXPECT_THAT(refused(file_of("{\"\xff\":1}", "")), HasSubstr("no JSON"));
  EXPECT_THAT(refused(file_of("{\"a\":" + std::string(100000, '['), "")), HasSubstr("no JSON"));
  const std::string entry = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(refused(file_of("{" + entry + "," + entry + "}", "")), HasSubstr("the key \"a\" twice"));
  EXPECT_THAT(refused(file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")),
              HasSubstr("the key \"dtype\" twice"));
}

TEST_F(Safetensors, RefusesBadEntries) {
  const auto entry = [&](const std::string& text) { return refused(file_of("{\"t\":" + text + "}", "12345678")); };
  EXPECT_THAT(entry("1"), HasSubstr("tensor t is not an object"));
  EXPECT_THAT(entry(R"({"shape":[8],"data_offsets":[0,8]})"), HasSubstr("tensor t has no string dtype"));
  EXPECT_THAT(entry(R"({"dtype":"Q7","shape":[8],"data_offsets":[0,8]})"), HasSubstr("unknown dtype \"Q7\""));
  EXPECT_THAT(entry(R"({"dtype":"U8","data_offsets":[0,8]})"), HasSubstr("no array shape"));
  EXPECT_THAT(entry(R"({"dtype":"U8","shape":[-8],"data_offsets":[0,8]})"), HasSubstr("-8, not a size"));
  EXPECT_THAT(entry(R"({"dtype":"U8","shape":[8.0],"data_offsets":[0,8]})"), HasSubstr("not a size"));
  EXPECT_THAT(entry(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]})"), HasSubstr("not a size"));
  EXPECT_THAT(entry(R"({"dtype":"U8","shape":[8],"data_offsets":[0]})"), HasSubstr("1 entries, not 2"));
  EXPECT_THAT(entry(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})"), HasSubstr("[8, 0)"));
  EXPECT_THAT(entry(R"({"dtype":"U8","shape":[7],"data_offsets":[0,8]})"), HasSubstr("7 bytes of its shape"));
  EXPECT_THAT(entry(R"({"dtype":"F4","shape":[15],"data_offsets":[0,8]})"), HasSubstr("last byte"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,8]})"), HasSubstr("overflows"));
  EXPECT_THAT(refused(file_of(R"({"__metadata__":{"a":1}})", "")), HasSubstr("__metadata__ \"a\" is not a string"));
  EXPECT_THAT(refused(file_of(R"({"__metadata__":[]})", "")), HasSubstr("__metadata__ is not an object"));
}

TEST_F(Safetensors, RefusesHolesOverlapsAndLeftovers) {
  const auto pair = [&](int begin, int end, const std::string& data) {
    return refused(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],)"
                           R"("data_offsets":[)" +
                               std::to_string(begin) + "," + std::to_string(end) + "]}}",
                           data));
  };
  EXPECT_THAT(pair(5, 9, "123456789"), AllOf(HasSubstr("tensor b begins at offset 5"), HasSubstr("4 is where")));
  EXPECT_THAT(pair(3, 7, "1234567"), HasSubstr("tensor b begins at offset 3"));
  EXPECT_THAT(pair(4, 8, "1234567"),
              AllOf(HasSubstr("end at offset 8"), HasSubstr("file at 7"), HasSubstr("last is b")));
  EXPECT_THAT(pair(4, 8, "123456789"), HasSubstr("file at 9"));
  EXPECT_THAT(refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "12")),
              HasSubstr("tensor a begins at offset 1"));
}

TEST_F(Safetensors, WriterHoldsToItsDeclaration) {
  EXPECT_THAT(std::string(SafetensorsWriter::create(files_, "w", {{"t", "F33", {1}}}, {}).status().message()),
              AllOf(HasSubstr("file w"), HasSubstr("tensor t"), HasSubstr("F33")));
  EXPECT_FALSE(SafetensorsWriter::create(files_, "w", {{"t", "U8", {1}}, {"t", "U8", {1}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::create(files_, "w", {{"__metadata__", "U8", {1}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::create(files_, "w", {{"\xff", "U8", {1}}}, {}).ok());
  auto writer = SafetensorsWriter::create(files_, "w", {{"t", "U8", {2}}}, {}).value();
  const std::string data = "abc";
  EXPECT_FALSE(writer->append(std::as_bytes(std::span(data))).ok());
  EXPECT_TRUE(writer->append(std::as_bytes(std::span(data)).first(1)).ok());
  EXPECT_THAT(std::string(writer->finish().status().message()), HasSubstr("1 declared bytes are missing"));
}

}  // namespace
}  // namespace telar::checkpoint
