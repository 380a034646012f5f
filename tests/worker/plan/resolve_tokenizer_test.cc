#include "worker/plan/resolve_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telar::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Case {
  v1::DataSpec::Format format = v1::DataSpec::TEXT;
  v1::TokenizerSpec tokenizer;

  // "field: message" of each problem; the spec is completed on the way.
  std::vector<std::string> problems() {
    v1::JobSpec spec;
    spec.mutable_data()->set_format(format);
    *spec.mutable_tokenizer() = tokenizer;
    Problems found;
    resolve_tokenizer(spec, found);
    tokenizer = spec.tokenizer();
    std::vector<std::string> lines;
    for (const SpecProblem& problem : found.take()) lines.push_back(problem.field + ": " + problem.description);
    return lines;
  }
};

TEST(ResolveTokenizer, KindComesFromTheNameOfTheFileOrTheFormatOfTheData) {
  const std::pair<const char*, v1::TokenizerSpec::Kind> named[] = {
      {"/t/tokenizer.json", v1::TokenizerSpec::HUGGING_FACE},
      {"/t/spiece.model", v1::TokenizerSpec::SENTENCEPIECE},
  };
  for (const auto& [path, kind] : named) {
    Case test{v1::DataSpec::MEGATRON, {}};
    test.tokenizer.set_path(path);
    EXPECT_THAT(test.problems(), IsEmpty());
    EXPECT_EQ(test.tokenizer.kind(), kind);
  }
  const std::pair<v1::DataSpec::Format, v1::TokenizerSpec::Kind> formats[] = {
      {v1::DataSpec::TEXT, v1::TokenizerSpec::BYTE},
      {v1::DataSpec::LLMC_BIN, v1::TokenizerSpec::NONE},
      {v1::DataSpec::MEGATRON, v1::TokenizerSpec::NONE},
      {v1::DataSpec::PREPARED, v1::TokenizerSpec::KIND_UNSPECIFIED},
  };
  for (const auto& [format, kind] : formats) {
    Case test{format, {}};
    EXPECT_THAT(test.problems(), IsEmpty());
    EXPECT_EQ(test.tokenizer.kind(), kind) << format;
  }
  Case unknown{v1::DataSpec::PREPARED, {}};
  unknown.tokenizer.set_path("/t/vocab.txt");
  EXPECT_THAT(
      unknown.problems(),
      ElementsAre("spec.tokenizer.kind: not given, and '/t/vocab.txt' ends in neither .json, .tiktoken nor .model"));
}

TEST(ResolveTokenizer, TextItselfIsReadAsBytesOnly) {
  Case file;
  file.tokenizer.set_path("/t/tokenizer.json");
  EXPECT_THAT(file.problems(), ElementsAre("spec.tokenizer.kind: hugging_face does not go with data.format text; run "
                                           "`telar data prepare` and use prepared"));
  Case none;
  none.tokenizer.set_kind(v1::TokenizerSpec::NONE);
  EXPECT_THAT(none.problems(), ElementsAre("spec.tokenizer.kind: none does not go with data.format text; use byte"));
  Case byte{v1::DataSpec::LLMC_BIN, {}};
  byte.tokenizer.set_kind(v1::TokenizerSpec::BYTE);
  EXPECT_THAT(byte.problems(),
              ElementsAre("spec.tokenizer.kind: byte does not go with data.format llmc_bin; use none"));
}

TEST(ResolveTokenizer, OptionsGoWithTheKindsThatHaveThem) {
  Case test{v1::DataSpec::MEGATRON, {}};
  test.tokenizer.set_kind(v1::TokenizerSpec::TIKTOKEN);
  test.tokenizer.set_path("ranks");
  EXPECT_THAT(
      test.problems(),
      ElementsAre("spec.tokenizer.path: 'ranks' must be an absolute path on the workers",
                  "spec.tokenizer.pattern: not given; use gpt2, cl100k, o200k, llama3 or a regular expression"));
  test.tokenizer.set_kind(v1::TokenizerSpec::NONE);
  test.tokenizer.set_pattern("gpt2");
  (*test.tokenizer.mutable_special_tokens())["<x>"] = 1;
  EXPECT_THAT(
      test.problems(),
      ElementsAre("spec.tokenizer.path: does not go with tokenizer.kind none",
                  "spec.tokenizer.pattern: does not go with tokenizer.kind none; only tiktoken files leave it open",
                  "spec.tokenizer.special_tokens: do not go with tokenizer.kind none; only tiktoken files leave "
                  "them open"));
  Case whole{v1::DataSpec::MEGATRON, {}};
  whole.tokenizer.set_path("/t/a.tiktoken");
  whole.tokenizer.set_pattern("llama3");
  whole.tokenizer.set_end_of_document("<|end_of_text|>");
  EXPECT_THAT(whole.problems(), IsEmpty());
}

}  // namespace
}  // namespace telar::plan
