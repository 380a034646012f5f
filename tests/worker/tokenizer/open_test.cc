// Files as users have them, and what is refused.
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/tokenizer/files.h"
#include "tests/worker/tokenizer/fuzz_strings.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::tokenizer {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

v1::TokenizerSpec spec_of(const std::string& path) {
  v1::TokenizerSpec spec;
  spec.set_path(path);
  if (path.ends_with(".tiktoken")) spec.set_pattern("gpt2");
  return spec;
}

std::unique_ptr<Tokenizer> golden(const std::string& name) {
  auto made = open(spec_of(golden_file(name)));
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

class OpenTest : public testing::Test {
 protected:
  OpenTest() {
    std::string pattern = testing::TempDir() + "/telar-open-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~OpenTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  // The error of a golden tokenizer.json after `edit`.
  std::string refusal(const std::string& name, const std::function<void(Json&)>& edit) const {
    Json json = Json::parse(contents(golden_file(name)));
    edit(json);
    const auto made = open(spec_of(write("tokenizer.json", json.dump())));
    return made.ok() ? "" : std::string(made.status().message());
  }

  std::filesystem::path folder_;
};

TEST_F(OpenTest, AnyBytesComeBackFromByteLevelTokenizers) {
  const FuzzStrings strings(golden_file("strings.json"));
  for (const char* name : {"gpt2.json", "llama3.json", "o200k.json", "deepseek.json", "ranks.tiktoken"}) {
    const auto tokenizer = golden(name);
    std::string all;
    for (int byte = 255; byte >= 0; --byte) all.push_back(static_cast<char>(byte));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(all)).value(), all) << name;
    for (uint64_t index = 7; index < 4000; index += 8) {
      // gpt2.json has tokens that swallow the white space beside them.
      const std::string text = strings.with_errors(index);
      if (text.find("[LR]") != std::string::npos || text.find("[R]") != std::string::npos) continue;
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)).value(), text) << name << ", string " << index;
    }
  }
}

TEST_F(OpenTest, ThreadsAgreeWithOne) {
  const FuzzStrings strings(golden_file("strings.json"));
  for (const char* name : {"qwen2.json", "behaviours.json", "ranks.tiktoken", "unigram.model", "bpe.model"}) {
    const auto tokenizer = golden(name);
    constexpr uint64_t kCount = 400;
    std::vector<std::vector<int32_t>> expected;
    for (uint64_t index = 0; index < kCount; ++index) expected.push_back(tokenizer->encode(strings.at(index)));
    std::vector<int> wrong(4);
    std::vector<std::thread> threads;
    for (size_t worker = 0; worker < wrong.size(); ++worker) {
      threads.emplace_back([&, worker] {
        for (uint64_t turn = 0; turn < kCount; ++turn) {
          const uint64_t index = (turn * (2 * worker + 1) + worker) % kCount;
          wrong[worker] += tokenizer->encode(strings.at(index)) != expected[index];
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0)) << name;
  }
}

TEST_F(OpenTest, SpecialTokensAndTheTemplateComeByChoice) {
  const auto tokenizer = golden("llama3.json");
  const int32_t begin = *tokenizer->find("<|begin_of_text|>"), turn = *tokenizer->find("<|eot_id|>");
  EXPECT_GT(tokenizer->encode("<|eot_id|>").size(), 1u);
  EXPECT_THAT(tokenizer->encode("<|eot_id|>", {.special_tokens = true}), ElementsAre(turn));
  EXPECT_THAT(tokenizer->encode("", {.template_tokens = true}), ElementsAre(begin, turn));
  EXPECT_EQ(tokenizer->decode(std::vector{begin, *tokenizer->find("a"), turn}).value(), "a");
  EXPECT_EQ(tokenizer->decode(std::vector{begin, turn}, true).value(), "<|begin_of_text|><|eot_id|>");
  const auto foreign = tokenizer->decode(std::vector{begin, tokenizer->vocab_size()}).status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("token 1: id"));
}

TEST_F(OpenTest, NamesAreForPeople) {
  const auto tokenizer = golden("gpt2.json");
  EXPECT_EQ(tokenizer->name_of(tokenizer->encode("\n")[0]), "\\n");
  EXPECT_EQ(tokenizer->name_of(tokenizer->encode("\x01")[0]), "\\x01");
  EXPECT_EQ(tokenizer->name_of(tokenizer->encode("\xFF")[0]), "\\xFF");
  EXPECT_EQ(tokenizer->name_of(tokenizer->encode(" the")[0]), " the");
  EXPECT_EQ(tokenizer->name_of(tokenizer->end_of_document()), "<|endoftext|>");
  EXPECT_EQ(tokenizer->name_of(1 << 20), "<1048576>");
}

TEST_F(OpenTest, TheEndOfADocumentIsTheSpecsThenTheConfigsThenAWellKnownName) {
  const std::string path = write("tokenizer.json", contents(golden_file("qwen2.json")));
  const auto end = [&](const std::string& text) -> std::string {
    v1::TokenizerSpec spec = spec_of(path);
    spec.set_end_of_document(text);
    const auto made = open(spec);
    return made.ok() ? (*made)->name_of((*made)->end_of_document()) : std::string(made.status().message());
  };
  EXPECT_EQ(end(""), "<|endoftext|>");
  write("tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(end(""), "<|im_end|>");
  EXPECT_EQ(end("<|im_start|>"), "<|im_start|>");
  EXPECT_THAT(end("<none>"), HasSubstr("tokenizer.end_of_document: '<none>' is no token of " + path));
  write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(end(""), HasSubstr("tokenizer_config.json.eos_token: \"</s>\" is no token of tokenizer.json"));
  EXPECT_EQ(golden("bpe.model")->end_of_document(), 2);
  EXPECT_EQ(golden("starcoder.json")->name_of(golden("starcoder.json")->end_of_document()), "<|endoftext|>");
  EXPECT_EQ(golden("o200k.json")->end_of_document(), -1);
}

TEST_F(OpenTest, TheKindIsTheSpecsOrTheNames) {
  EXPECT_EQ(open(spec_of(golden_file("strings.txt"))).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(open(spec_of(golden_file("none.json"))).status().code(), absl::StatusCode::kNotFound);
  v1::TokenizerSpec bytes;
  bytes.set_kind(v1::TokenizerSpec::BYTE);
  EXPECT_EQ((*open(bytes))->vocab_size(), kByteVocab);
  v1::TokenizerSpec ranks = spec_of(write("tokenizer.model", contents(golden_file("ranks.tiktoken"))));
  EXPECT_FALSE(open(ranks).ok());  // By its name SentencePiece's.
  ranks.set_kind(v1::TokenizerSpec::TIKTOKEN);
  ranks.set_pattern("llama3");
  EXPECT_TRUE(open(ranks).ok());
}

TEST_F(OpenTest, ComponentsThatWeDoNotKnowAreNamed) {
  const std::pair<const char*, std::function<void(Json&)>> cases[] = {
      {"model.type: 'WordPiece' is not supported", [](Json& j) { j["model"]["type"] = "WordPiece"; }},
      {"model.dropout: 0.1 is not supported", [](Json& j) { j["model"]["dropout"] = 0.1; }},
      {"model.end_of_word_suffix: \"</w>\"", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"model.cache: unknown option", [](Json& j) { j["model"]["cache"] = 3; }},
      {"model.merges[0]: \"a\" is not two tokens", [](Json& j) { j["model"]["merges"][0] = "a"; }},
      {"model.merges[1]: '\u4e00' is not in model.vocab",
       [](Json& j) {
         j["model"]["merges"][1] = {"a", "\u4e00"};
       }},
      {"model.merges[2]: '~^' is not in model.vocab", [](Json& j) { j["model"]["merges"][2] = "~ ^"; }},
      {"model.vocab[\"a\"]: -1 is no id", [](Json& j) { j["model"]["vocab"]["a"] = -1; }},
      {"is no id in [0, 16777216)", [](Json& j) { j["model"]["vocab"]["a"] = 4'000'000'000u; }},
      {"is that of", [](Json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; }},
      {"model.vocab: no token for byte 0x61", [](Json& j) { j["model"]["vocab"].erase("a"); }},
      {"normalizer.type: 'Lowercase' is not supported",
       [](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       }},
      {"normalizer.normalizers[0].type: 'NFKC'",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
       }},
      {"pre_tokenizer.type: 'Whitespace' is not supported",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {"pre_tokenizer: no ByteLevel in it",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
       }},
      {"pre_tokenizer.pretokenizers[1].type: 'Digits' behind ByteLevel",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {j["pre_tokenizer"], {{"type", "Digits"}}}}};
       }},
      {"pre_tokenizer.behavior: 'Sometimes' is not known",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Sometimes"}};
       }},
      {"pre_tokenizer.pattern.Regex: \\b is not supported",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\b"}}}, {"behavior", "Isolated"}};
       }},
      {"post_processor.type: 'RobertaProcessing'",
       [](Json& j) {
         j["post_processor"] = {{"type", "RobertaProcessing"}};
       }},
      {"decoder: missing", [](Json& j) { j["decoder"] = nullptr; }},
      {"decoder.type: 'WordPiece'",
       [](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       }},
      {"added_tokens[0].content: empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }},
      {"added_tokens[2].content: '<|endoftext|>' is there twice",
       [](Json& j) {
         j["added_tokens"][1]["content"] = "<|endoftext|>";
         j["added_tokens"][2]["content"] = "<|endoftext|>";
       }},
      {"added_tokens[0]: id 5 of 'new' is that of",
       [](Json& j) {
         j["added_tokens"][0].update({{"content", "new"}, {"id", 5}});
       }},
      {"added_tokens[0]: 'a' has id 5 here and",
       [](Json& j) {
         j["added_tokens"][0].update({{"content", "a"}, {"id", 5}});
       }},
      {"added_tokens[0].rank: unknown option", [](Json& j) { j["added_tokens"][0]["rank"] = 5; }},
      {"model.vocab: [] is no vocabulary", [](Json& j) { j["model"]["vocab"] = Json::array(); }},
      {"model: missing", [](Json& j) { j.erase("model"); }},
  };
  for (const auto& [why, edit] : cases) {
    const std::string refused = refusal("gpt2.json", edit);
    EXPECT_THAT(refused, HasSubstr(why));
    EXPECT_THAT(refused, HasSubstr("tokenizer file " + folder_.string()));
    EXPECT_EQ(refused.find('\n'), std::string::npos);
  }
  EXPECT_EQ(refusal("gpt2.json", [](Json&) {}), "");
}

TEST_F(OpenTest, RankFilesAreReadLineByLine) {
  const std::string ranks = contents(golden_file("ranks.tiktoken"));
  const std::pair<std::string, const char*> cases[] = {
      {ranks + "YWI", "line 1201: not a token in base64, a space and its rank"},
      {ranks + "\n???? 5\n", "line 1202: not a token"},
      {ranks + "enp6enp6 3\n", "line 1201: rank 3 is there twice"},
      {ranks + ranks.substr(0, ranks.find(' ')) + " 4000\n", "line 1201: the token is there twice"},
      {ranks + "enp6enp6 -3\n", "line 1201: rank -3 is outside"},
      {"YQ== 0\n", "no token for byte 0x00"},
      {"", "no token for byte 0x00"},
  };
  for (const auto& [text, why] : cases) {
    const auto status = open(spec_of(write("a.tiktoken", text))).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  v1::TokenizerSpec spec = spec_of(golden_file("ranks.tiktoken"));
  (*spec.mutable_special_tokens())["<x>"] = 7;
  EXPECT_THAT(std::string(open(spec).status().message()),
              HasSubstr("tokenizer.special_tokens[<x>]: id 7 is that of another token already"));
  (*spec.mutable_special_tokens())["<x>"] = 2000;  // Leaves a hole, which stands for nothing.
  spec.set_end_of_document("<x>");
  const auto holes = *open(spec);
  EXPECT_EQ(holes->vocab_size(), 2001);
  EXPECT_EQ(holes->end_of_document(), 2000);
  EXPECT_EQ(holes->decode(std::vector<int32_t>{1999}).value(), "");
  spec.set_pattern("");
  EXPECT_THAT(std::string(open(spec).status().message()), HasSubstr("tokenizer.pattern: not given"));
}

}  // namespace
}  // namespace telar::tokenizer
