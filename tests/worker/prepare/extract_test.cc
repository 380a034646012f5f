#include "worker/prepare/extract.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telar::prepare {
namespace {

using testing::HasSubstr;

// RFC 3629 by decoding: the value of the sequence at `at`, if its shortest form is that long.
size_t reference_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : (lead >> 5) == 6 ? 2 : (lead >> 4) == 14 ? 3 : (lead >> 3) == 30 ? 4 : 0;
  if (length <= 1) return length;
  uint32_t value = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) >> 6) != 2) return 0;
    value = (value << 6) | (byte(i) & 0x3f);
  }
  const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  return value >= least[length] && value <= 0x10ffff && !surrogate ? length : 0;
}

size_t reference_invalid(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = reference_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string::npos;
}

TEST(Utf8, EveryLeadAndSecondByte) {
  for (int lead = 0; lead < 256; ++lead) {
    for (int second = 0; second < 256; ++second) {
      for (const char* rest : {"", "\x80", "\x80\x80", "\xbf\xbf", "\xbf\xbf\xbf", "ab"}) {
        const std::string text = std::string("x") + static_cast<char>(lead) + static_cast<char>(second) + rest;
        ASSERT_EQ(find_invalid_utf8(text), reference_invalid(text)) << lead << " " << second << " " << rest;
      }
    }
  }
}

TEST(Utf8, RandomBytesOfAFewKinds) {
  std::mt19937_64 random(7);
  const std::string kinds = "aaaaaaaaaaaaaaaa\x80\xbf\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = kinds[random() % kinds.size()];
    ASSERT_EQ(find_invalid_utf8(text), reference_invalid(text));
  }
}

TEST(CheckText, NamesLineAndColumn) {
  EXPECT_FALSE(check_text("a\nb\xc3\xa9\n", 1));
  const auto fault = check_text("a\nbc\xff", 5);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->line, 6u);
  EXPECT_EQ(fault->column, 3u);
  EXPECT_EQ(fault->what, "byte 0xff is not UTF-8");
  EXPECT_EQ(check_text("\xc3", 1)->column, 1u);
}

TEST(JsonText, TakesTheField) {
  std::string text;
  EXPECT_FALSE(json_text(R"({"id": 1, "text": "a\n\u00e9\ud83d\ude00", "meta": {"text": "no"}})", "text", 1, text));
  EXPECT_EQ(text, "a\n\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_FALSE(json_text(" {\"meta\": [{\"text\": 1}], \"text\": \"\"} \r\n", "text", 1, text));
  EXPECT_EQ(text, "");
  EXPECT_FALSE(json_text(R"({"text": "x", "text": "y"})", "text", 1, text));
  EXPECT_EQ(text, "y");
  EXPECT_FALSE(json_text(R"({"text": 1, "body": "b"})", "body", 1, text));
  EXPECT_EQ(text, "b");
}

TEST(JsonText, FaultsSayWhatAndWhere) {
  struct Case {
    const char* json;
    uint64_t column;
    const char* what;
  };
  const Case cases[] = {{R"({"text": "a)", 12, "invalid JSON: syntax error"},
                        {R"({"text": nope})", 11, "invalid JSON: syntax error"},
                        {R"({"text": "a"} x)", 15, "invalid JSON: syntax error"},
                        {R"({"text": "\ud800"})", 17, "invalid JSON: syntax error"},
                        {R"({"body": "a"})", 0, "no field 'text'"},
                        {R"({"meta": {"text": "a"}})", 0, "no field 'text'"},
                        {R"([{"text": "a"}])", 0, "no JSON object"},
                        {R"("text")", 0, "no JSON object"},
                        {R"({"text": null})", 0, "field 'text' is null, not a string"},
                        {R"({"text": 1})", 0, "field 'text' is a number, not a string"},
                        {R"({"text": -1.5})", 0, "field 'text' is a number, not a string"},
                        {R"({"text": true})", 0, "field 'text' is a boolean, not a string"},
                        {R"({"text": ["text", "a"]})", 0, "field 'text' is an array, not a string"},
                        {R"({"text": {"text": "a"}})", 0, "field 'text' is an object, not a string"},
                        {R"({"text": "a", "text": 2})", 0, "field 'text' is a number, not a string"},
                        {"{\"text\": \"a\xe9\"}", 12, "byte 0xe9 is not UTF-8"}};
  for (const Case& one : cases) {
    std::string text;
    const auto fault = json_text(one.json, "text", 9, text);
    ASSERT_TRUE(fault) << one.json;
    EXPECT_EQ(fault->line, 9u);
    EXPECT_EQ(fault->column, one.column) << one.json;
    EXPECT_THAT(fault->what, HasSubstr(one.what)) << one.json;
    EXPECT_EQ(fault->what.find("json.exception"), std::string::npos) << fault->what;
  }
}

}  // namespace
}  // namespace telar::prepare
