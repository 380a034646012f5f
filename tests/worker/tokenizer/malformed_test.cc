// Broken files are refused or read, but never end the program; best under address and undefined sanitizers.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "tests/worker/tokenizer/files.h"
#include "tests/worker/tokenizer/fuzz_strings.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::tokenizer {
namespace {

// Bytes changed, taken out, doubled, or cut off at the end.
std::string mutated(std::string text, std::mt19937_64& random) {
  for (uint64_t left = 1 + random() % 4; left > 0 && !text.empty(); --left) {
    const size_t at = random() % text.size();
    const size_t size = std::min<size_t>(1 + random() % 16, text.size() - at);
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(random() % text.size(), text.substr(at, size));
        break;
      case 3:
        text[at] = static_cast<char>(text[at] ^ 1 << random() % 8);
        break;
      default:
        if (random() % 8 == 0) text.resize(at);
    }
  }
  return text;
}

class MalformedTest : public testing::TestWithParam<std::string> {};

TEST_P(MalformedTest, NeverEndsTheProgram) {
  const char* more = std::getenv("TELAR_TOKENIZER_MUTATIONS");
  const uint64_t count = more != nullptr ? std::strtoull(more, nullptr, 10) : 150;
  const std::string original = contents(golden_file(GetParam()));
  const FuzzStrings strings(golden_file("strings.json"));
  const auto path = std::filesystem::path(testing::TempDir()) / ("telar_malformed_" + GetParam());
  v1::TokenizerSpec spec;
  spec.set_path(path.string());
  if (GetParam().ends_with(".tiktoken")) spec.set_pattern("cl100k");
  uint64_t opened = 0;
  for (uint64_t seed = 0; seed < count; ++seed) {
    std::mt19937_64 random(seed);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << mutated(original, random);
    const auto tokenizer = open(spec);
    if (!tokenizer.ok()) {
      EXPECT_EQ(std::string(tokenizer.status().message()).find('\n'), std::string::npos) << tokenizer.status();
      continue;
    }
    ++opened;
    for (uint64_t index = 0; index < 20; ++index) {
      const auto ids =
          (*tokenizer)
              ->encode(strings.with_errors(seed * 20 + index), {.special_tokens = true, .template_tokens = true});
      EXPECT_TRUE((*tokenizer)->decode(ids).ok());
      for (const int32_t id : ids) ASSERT_LT(id, (*tokenizer)->vocab_size());
    }
  }
  std::filesystem::remove(path);
  EXPECT_GT(opened, 0u);  // Else the mutations are too wild to get past the parser.
  EXPECT_LT(opened, count);
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedTest,
                         testing::Values("llama3.json", "behaviours.json", "ranks.tiktoken", "unigram.model",
                                         "bpe.model"),
                         [](const auto& named) { return named.param.substr(0, named.param.find('.')); });

}  // namespace
}  // namespace telar::tokenizer
