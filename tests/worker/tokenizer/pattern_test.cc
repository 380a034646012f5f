#include "worker/tokenizer/pattern.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/tokenizer/files.h"
#include "tests/worker/tokenizer/fuzz_strings.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> words(const Pattern& pattern, std::string_view text) {
  const auto state = pattern.make_state();
  pattern.begin(state.get(), text);
  std::vector<std::string> found;
  Match match;
  for (size_t at = 0; pattern.find(state.get(), text, at, match); at = match.end) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return found;
}

std::unique_ptr<Pattern> pcre(std::string_view text) {
  auto made = make_pcre_pattern(text, Dollar::kEndOfText);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// Printed by its name: a pattern in a test's name is too much for ctest.
struct Known {
  std::string_view name, pattern;
};
void PrintTo(const Known& known, std::ostream* out) { *out << known.name; }

class KnownPatternTest : public testing::TestWithParam<Known> {};

TEST_P(KnownPatternTest, CutsAsPcreDoes) {
  const auto by_hand = make_known_pattern(GetParam().pattern);
  ASSERT_NE(by_hand, nullptr);
  const auto by_pcre = pcre(GetParam().pattern);
  const FuzzStrings strings(golden_file("strings.json"));
  const char* more = std::getenv("TELAR_PATTERN_STRINGS");
  const uint64_t count = more != nullptr ? std::strtoull(more, nullptr, 10) : 10'000;
  for (uint64_t index = 0; index < count; ++index) {
    const std::string text = strings.with_errors(index + 20'000);
    ASSERT_EQ(words(*by_hand, text), words(*by_pcre, text)) << "string " << index + 20'000;
  }
  // Every string of four characters out of those that the rules tell apart.
  const std::string_view characters[] = {"a", "B", "s", "1",      " ",      "\n",  "\t",
                                         "'", "/", "!", "\u0301", "\u4e00", "\x80"};
  constexpr size_t kCharacters = std::size(characters);
  for (size_t code = 0; code < kCharacters * kCharacters * kCharacters * kCharacters; ++code) {
    std::string text;
    for (size_t rest = code, left = 4; left > 0; --left, rest /= kCharacters) text += characters[rest % kCharacters];
    ASSERT_EQ(words(*by_hand, text), words(*by_pcre, text)) << testing::PrintToString(text);
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, KnownPatternTest,
                         testing::Values(Known{"gpt2", kGpt2Pattern}, Known{"cl100k", kCl100kPattern},
                                         Known{"o200k", kO200kPattern}, Known{"llama3", kLlama3Pattern},
                                         Known{"qwen2", kQwen2Pattern}),
                         [](const auto& known) { return std::string(known.param.name); });

// PCRE2 10.42 knows Unicode 14.0, our table 15.0: they may differ only in what 14.0 has not assigned.
TEST(Pattern, ClassesAreUnicodes) {
  const std::pair<const char*, uint8_t> properties[] = {{R"(\p{L})", kLetter},
                                                        {R"(\p{N})", kNumber},
                                                        {R"(\s)", kSpace},
                                                        {R"(\p{M})", kMark},
                                                        {R"([\p{Lu}\p{Lt}])", kUpper},
                                                        {R"(\p{Ll})", kLower},
                                                        {R"([\p{Lm}\p{Lo}])", kCaseless},
                                                        {R"([^\s\p{L}\p{N}])", kOther}};
  const auto unassigned = pcre(R"(\p{Cn})");
  const auto unassigned_state = unassigned->make_state();
  size_t newer = 0;
  for (const auto& [text, bit] : properties) {
    const auto pattern = pcre(text);
    const auto state = pattern->make_state();
    for (uint32_t code = 0; code < 0x110000; ++code) {
      if (code >= 0xD800 && code <= 0xDFFF) continue;
      std::string character;
      append_utf8(code, character);
      Match match;
      pattern->begin(state.get(), character);
      if (pattern->find(state.get(), character, 0, match) == ((classes()[code] & bit) != 0)) continue;
      unassigned->begin(unassigned_state.get(), character);
      ASSERT_TRUE(unassigned->find(unassigned_state.get(), character, 0, match)) << text << " U+" << std::hex << code;
      ++newer;
    }
  }
  EXPECT_LT(newer, 4 * 4489u);  // Unicode 15.0 has 4489 new characters.
}

TEST(Pattern, KnownOnesAreToldByTheirText) {
  EXPECT_NE(make_known_pattern(R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"),
            nullptr);
  EXPECT_EQ(make_known_pattern(std::string(kGpt2Pattern) + "|x"), nullptr);
  EXPECT_EQ(make_known_pattern(R"(\s+)"), nullptr);
}

TEST(PcrePattern, LeavesGapsAndSeesWhatStandsBefore) {
  EXPECT_THAT(words(*pcre(R"((?<=a)b+)"), "abbxba bab"), ElementsAre("bb", "b"));
  EXPECT_THAT(words(*pcre("x*"), "axxb"), ElementsAre("xx"));  // Empty matches are none.
}

TEST(PcrePattern, BytesThatAreNoCharacterAreOfNoClass) {
  const auto pattern = pcre(R"(\p{L}+|[^\p{L}])");
  EXPECT_THAT(words(*pattern, "ab\xFF\xC3(\u00E9\xE2\x82z"),
              ElementsAre("ab", "\xFF", "\xC3", "(", "\u00E9", "\xE2", "\x82", "z"));
  EXPECT_THAT(words(*pcre("[^x]+"), "a\x80\x80xx\x80"), ElementsAre("a\x80\x80", "\x80"));
}

TEST(PcrePattern, LongMatchesNeedNoStackOfTheProgram) {
  const std::string text(200'000, 'a');
  EXPECT_THAT(words(*pcre("(?:a|b)*c|(?:ab?)+"), text), SizeIs(1));
}

TEST(PcrePattern, RefusesWhatOthersReadDifferently) {
  const std::pair<const char*, const char*> refused[] = {
      {R"(\w+)", "\\w is not supported"}, {"^a", "^ is not supported"},          {"[a[b]]", "inside a class"},
      {"[a&&b]", "&& inside a class"},    {"a(", "missing closing parenthesis"}, {"[]a]", "']' first in a class"},
  };
  for (const auto& [text, why] : refused) {
    const auto made = make_pcre_pattern(text, Dollar::kEndOfText);
    ASSERT_FALSE(made.ok()) << text;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(why)) << text;
  }
  EXPECT_FALSE(make_pcre_pattern("a$", Dollar::kRefused).ok());
  EXPECT_TRUE(make_pcre_pattern(R"([$^]\$)", Dollar::kRefused).ok());
}

TEST(LiteralPattern, FindsItself) {
  EXPECT_THAT(words(*make_literal_pattern("a."), "xa.a.ab"), ElementsAre("a.", "a."));
}

}  // namespace
}  // namespace telar::tokenizer
