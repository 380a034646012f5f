// The ids and texts that the libraries make of 10,000 strings; tests/golden/make_tokenizers.py wrote them down.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/tokenizer/files.h"
#include "tests/worker/tokenizer/fuzz_strings.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::tokenizer {
namespace {

using Json = nlohmann::json;
using testing::ElementsAreArray;

constexpr size_t kStrings = 10'000;
constexpr size_t kPerHash = 50;

class Fnv {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  }
  void add(const std::vector<int32_t>& ids) {
    add(std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)));
  }
  // Of what came since the last time, each part ended by four bytes of ones.
  std::string take() { return fmt::format("{:016x}", std::exchange(value_, kStart)); }

 private:
  static constexpr uint64_t kStart = 0xCBF29CE484222325u;
  uint64_t value_ = kStart;
};

v1::TokenizerSpec spec_of(const Json& json) {
  v1::TokenizerSpec spec;
  v1::TokenizerSpec::Kind kind{};
  EXPECT_TRUE(v1::TokenizerSpec::Kind_Parse(json.at("kind").get<std::string>(), &kind));
  spec.set_kind(kind);
  spec.set_path(golden_file(json.at("path")));
  spec.set_pattern(json.value("pattern", ""));
  spec.set_end_of_document(json.value("end_of_document", ""));
  if (json.contains("special_tokens")) {
    for (const auto& [text, id] : json.at("special_tokens").items()) (*spec.mutable_special_tokens())[text] = id;
  }
  return spec;
}

class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  GoldenTest()
      : golden_(Json::parse(contents(golden_file(GetParam() + ".golden.json")))),
        strings_(golden_file("strings.json")),
        errors_(golden_.at("encode").contains("errors")) {
    auto tokenizer = open(spec_of(golden_.at("spec")));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    if (tokenizer.ok()) tokenizer_ = *std::move(tokenizer);
  }

  std::string string(size_t index) const { return errors_ ? strings_.with_errors(index) : strings_.at(index); }

  const Json golden_;
  const FuzzStrings strings_;
  const bool errors_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(GoldenTest, IdsAndTextsAreTheLibrarys) {
  ASSERT_NE(tokenizer_, nullptr);
  for (const auto& [how, expected] : golden_.at("encode").items()) {
    const bool special = how == "special";
    const EncodeOptions options{.special_tokens = special, .template_tokens = special};
    const auto& first = expected.at("first");
    for (size_t index = 0; index < first.size(); ++index) {
      const auto ids = first[index].get<std::vector<int32_t>>();
      ASSERT_THAT(tokenizer_->encode(string(index), options), ElementsAreArray(ids))
          << how << " of string " << index << ": " << Json(strings_.at(index)).dump(-1, ' ', true);
    }
    const Json decoded = golden_.at("decode").value(how, Json());
    Fnv ids_hash, text_hash;
    for (size_t index = 0; index < kStrings; ++index) {
      const auto ids = tokenizer_->encode(string(index), options);
      ids_hash.add(ids);
      ids_hash.add("\xFF\xFF\xFF\xFF");
      text_hash.add(tokenizer_->decode(ids, special).value());
      text_hash.add("\xFF\xFF\xFF\xFF");
      if ((index + 1) % kPerHash != 0) continue;
      const size_t group = index / kPerHash;
      ASSERT_EQ(ids_hash.take(), expected.at("hashes")[group])
          << how << ": ids of strings " << index + 1 - kPerHash << " to " << index;
      const std::string text = text_hash.take();
      if (!decoded.is_null()) {
        ASSERT_EQ(text, decoded[group]) << how << ": texts of strings " << index + 1 - kPerHash << " to " << index;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GoldenTest,
                         testing::Values("gpt2", "starcoder", "llama3", "qwen2", "o200k", "deepseek", "behaviours",
                                         "tiktoken-gpt2", "tiktoken-cl100k", "tiktoken-o200k", "tiktoken-llama3",
                                         "tiktoken-own", "sentencepiece-unigram", "sentencepiece-bpe",
                                         "sentencepiece-suffix"),
                         [](const auto& named) {
                           std::string name = named.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace telar::tokenizer
