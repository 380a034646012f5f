#include "worker/tokenizer/tokenizer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telar::tokenizer {
namespace {

TEST(ByteTokenizer, RoundTripsEveryByte) {
  const auto tokenizer = make_byte_tokenizer();
  std::string bytes;
  for (int value = 0; value < 256; ++value) bytes.push_back(static_cast<char>(value));
  const auto ids = tokenizer->encode(bytes);
  ASSERT_EQ(ids.size(), 256u);
  for (int value = 0; value < 256; ++value) EXPECT_EQ(ids[value], value);
  EXPECT_EQ(tokenizer->decode(ids).value(), bytes);
}

TEST(ByteTokenizer, EndOfDocumentIsTheLastIdAndNoBytes) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_document(), 256);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'a', 256, 'b'}).value(), "ab");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{}).value(), "");
}

TEST(ByteTokenizer, RefusesForeignIdsByPlace) {
  const auto tokenizer = make_byte_tokenizer();
  for (const int32_t id : {257, -1}) {
    const auto status = tokenizer->decode(std::vector<int32_t>{65, id}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("token 1: id " + std::to_string(id)));
  }
}

}  // namespace
}  // namespace telar::tokenizer
