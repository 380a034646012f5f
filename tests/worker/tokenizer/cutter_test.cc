#include "worker/tokenizer/cutter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/tokenizer/added_tokens.h"

namespace telar::tokenizer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> cut(const Cutter& cutter, std::string_view text) {
  std::vector<std::string> words;
  Cutter::State state = cutter.make_state();
  cutter.cut(text, state, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Cutter one_step(Behaviour behaviour, bool invert = false) {
  std::vector<Cutter::Step> steps(1);
  steps[0].pattern = make_literal_pattern("-");
  steps[0].behaviour = behaviour;
  steps[0].invert = invert;
  return Cutter(std::move(steps));
}

// The example of the library's documentation.
TEST(Cutter, BehavesAsDocumented) {
  const std::string text = "the-final--countdown";
  EXPECT_THAT(cut(one_step(Behaviour::kRemoved), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(cut(one_step(Behaviour::kIsolated), text), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(cut(one_step(Behaviour::kMergedWithPrevious), text), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(cut(one_step(Behaviour::kMergedWithNext), text), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(cut(one_step(Behaviour::kContiguous), text), ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(cut(one_step(Behaviour::kRemoved, true), text), ElementsAre("-", "-", "-"));
  EXPECT_THAT(cut(one_step(Behaviour::kMergedWithPrevious, true), text),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(cut(one_step(Behaviour::kIsolated), ""), IsEmpty());
  EXPECT_THAT(cut(one_step(Behaviour::kRemoved), "--"), IsEmpty());
}

TEST(Cutter, EachStepCutsWhatTheOneBeforeLeft) {
  std::vector<Cutter::Step> steps(2);
  steps[0].pattern = make_digit_pattern();
  steps[1].pattern = make_known_pattern(kGpt2Pattern);
  steps[1].prefix_space = true;
  const Cutter cutter(std::move(steps));
  EXPECT_THAT(cut(cutter, "ab cd12"), ElementsAre(" ab", " cd", " 1", " 2"));
}

std::vector<std::string> split(std::vector<AddedToken> tokens, std::string_view text, bool special) {
  std::vector<std::string> parts;
  AddedTokens(std::move(tokens))
      .split(
          text, special, [&](std::string_view section) { parts.emplace_back(section); },
          [&](int32_t id) { parts.push_back("#" + std::to_string(id)); });
  return parts;
}

TEST(AddedTokens, TheLongestAtEachPlaceAndSpecialOnesByChoice) {
  const std::vector<AddedToken> tokens = {
      {.id = 1, .text = "<a>", .special = true}, {.id = 2, .text = "<a>b"}, {.id = 3, .text = "a>"}};
  EXPECT_THAT(split(tokens, "x<a><a>b", true), ElementsAre("x", "#1", "#2"));
  EXPECT_THAT(split(tokens, "x<a><a>b>a>", false), ElementsAre("x<a>", "#2", ">", "#3"));  // <a> hides a>.
  EXPECT_THAT(split(tokens, "", true), IsEmpty());
  EXPECT_THAT(split({}, "text", true), ElementsAre("text"));
}

TEST(AddedTokens, StripsWhiteSpaceAndAsksForWholeWords) {
  const std::vector<AddedToken> strip = {{.id = 1, .text = "[M]", .strip_left = true, .strip_right = true}};
  EXPECT_THAT(split(strip, "a\u3000 [M] \u2003[M] \nb", true), ElementsAre("a", "#1", "#1", "b"));
  EXPECT_THAT(split(strip, " [M]", true), ElementsAre("#1"));
  EXPECT_THAT(split(strip, "\x80[M]\x80", true), ElementsAre("\x80", "#1", "\x80"));
  const std::vector<AddedToken> word = {{.id = 1, .text = "do", .single_word = true}};
  EXPECT_THAT(split(word, "do undo do_ do\u0301 (do)", true), ElementsAre("#1", " undo do_ do\u0301 (", "#1", ")"));
}

}  // namespace
}  // namespace telar::tokenizer
