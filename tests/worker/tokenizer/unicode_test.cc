#include "worker/tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/worker/tokenizer/files.h"
#include "tests/worker/tokenizer/fuzz_strings.h"

namespace telar::tokenizer {
namespace {

TEST(Utf8, EveryCodePointThereAndBack) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(code, bytes);
    const Character character = character_at(bytes, 0);
    ASSERT_EQ(character.code, code);
    ASSERT_EQ(character.length, bytes.size());
  }
}

TEST(Utf8, OverlongSurrogateTooLargeAndCutOnesAreBytes) {
  for (const std::string_view bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98"}) {
    const Character character = character_at(bad, 0);
    EXPECT_EQ(character.code, kNoCodePoint);
    EXPECT_EQ(character.length, 1u);
    EXPECT_FALSE(is_utf8(bad));
  }
}

std::string nfc_of_all(const std::string& text) {
  auto* made = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  const std::string out(reinterpret_cast<const char*>(made));
  std::free(made);
  return out;
}

TEST(Nfc, PartsAreNormalizedAsTheWhole) {
  const FuzzStrings strings(golden_file("strings.json"));
  for (uint64_t index = 0; index < 10'000; ++index) {
    std::string text = strings.at(index);
    std::erase(text, '\0');  // utf8proc_NFC ends there.
    std::string buffer;
    ASSERT_EQ(to_nfc(text, buffer), nfc_of_all(text)) << "string " << index;
  }
}

TEST(Nfc, WhatIsNotUtf8StaysAndParts) {
  std::string buffer;
  EXPECT_EQ(to_nfc("e\u0301\xFF\u0301x", buffer), "\u00E9\xFF\u0301x");
  EXPECT_EQ(to_nfc("\xE2\x82", buffer), "\xE2\x82");
  const std::string plain = "nothing to do";
  EXPECT_EQ(to_nfc(plain, buffer).data(), plain.data());
}

TEST(Nfc, ManyMarksTakeNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 ? "\u0301" : "\u0323";
  std::string buffer;
  EXPECT_EQ(to_nfc(text, buffer).substr(0, 5), "\u1EA1\u0323");  // Dots below come before accents.
}

}  // namespace
}  // namespace telar::tokenizer
