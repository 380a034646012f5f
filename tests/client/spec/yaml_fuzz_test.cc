// Broken files of every kind: reading never crashes, and each problem is one line.
#include <gtest/gtest.h>

#include <random>

#include "client/output/message.h"
#include "client/spec/reader.h"
#include "telar/v1/spec.pb.h"

namespace telar::client {
namespace {

const std::string kSeeds[] = {
    "name: tiny\nmodel:\n  preset: gpt2-124m\n  tied_head: no\ndata:\n  train: [a.txt, \"b c\"]\nseed: 1k\n",
    "{\"name\": \"x\", \"model\": {\"layers\": 2, \"heads\": \"4\"}, \"sample\": {\"prompt\": \"\\ud83d\\ude00\"}}",
    "name: \"x\"\nmodel { layers: 2 architecture: LLAMA }\ndata { train: [\"a\", \"b\"] }\n",
    "batch: &b {global: 8}\nsample:\n  prompt: |\n    two\n    lines\n  tokens: 12\nrestart:\n- a\n"};
const std::string kPieces[] = {"\n",  "  ",  ": ",   "- ",    "[", "]",      "{",  "}",   "\"",          "'",
                               "&a ", "*a",  "|",    ">",     "#", "!!int ", "? ", "\t",  "%YAML 9.9\n", "---",
                               "...", "\\u", "\xff", "1e999", "~", "<<: *b", ",",  "\x01"};

std::string mutated(std::mt19937& random, std::string text) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t changes = 1 + below(6); changes > 0; --changes) {
    const size_t at = below(text.size() + 1);
    switch (below(4)) {
      case 0:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, below(8));
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() + 1), below(30)));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
    }
  }
  return text;
}

TEST(YamlFuzzTest, MutationsNeverCrashAndProblemsAreOneLine) {
  std::mt19937 random(20261129);
  int read_whole = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = mutated(random, kSeeds[random() % std::size(kSeeds)]);
    for (const Format format : {Format::kYaml, Format::kJson, Format::kTextproto}) {
      v1::JobSpec spec;
      const SpecReading reading = read_spec("f", text, format, spec);
      for (const Problem& problem : reading.problems) {
        ASSERT_EQ(to_string(problem).find('\n'), std::string::npos) << "iteration " << i << ":\n" << text;
      }
      if (!reading.problems.empty()) continue;
      ++read_whole;
      // What was accepted is printed and read back as the same message.
      v1::JobSpec again;
      ASSERT_TRUE(spec.ByteSizeLong() == 0 || read_spec("g", to_yaml(spec), Format::kYaml, again).problems.empty())
          << text << "\n"
          << to_yaml(spec);
      ASSERT_EQ(to_yaml(spec), to_yaml(again)) << text;
    }
  }
  EXPECT_GT(read_whole, 500) << "the mutations must leave some files whole";
}

TEST(YamlFuzzTest, DeepNestingAndAliasesEnd) {
  v1::JobSpec spec;
  EXPECT_FALSE(read_spec("f", std::string(100'000, '['), Format::kYaml, spec).problems.empty());
  EXPECT_FALSE(read_spec("f", std::string(100'000, '{'), Format::kJson, spec).problems.empty());
  std::string nested;
  for (int i = 0; i < 50'000; ++i) nested += "model {";
  EXPECT_FALSE(read_spec("f", nested, Format::kTextproto, spec).problems.empty());
  std::string laughs = "a0: &a0 [x]\n";
  for (int i = 1; i < 40; ++i) {
    const std::string n = std::to_string(i), m = std::to_string(i - 1);
    laughs += "a" + n + ": &a" + n + " [*a" + m + ", *a" + m + "]\n";
  }
  EXPECT_FALSE(read_spec("f", laughs + "data: {train: *a39}\n", Format::kYaml, spec).problems.empty());
}

}  // namespace
}  // namespace telar::client
