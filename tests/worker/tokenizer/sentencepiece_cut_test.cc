#include "worker/tokenizer/sentencepiece_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/worker/tokenizer/files.h"
#include "worker/tokenizer/readers.h"

namespace telar::tokenizer {
namespace {

std::vector<std::pair<uint32_t, int32_t>> pairs(const std::vector<CutPiece>& pieces) {
  std::vector<std::pair<uint32_t, int32_t>> all;
  for (const CutPiece& piece : pieces) all.emplace_back(piece.size, piece.id);
  return all;
}

SentencePieceModel model_of(const std::string& name) {
  const auto file = read_tokenizer_file(golden_file(name));
  EXPECT_TRUE(file.ok()) << file.status();
  auto model = parse_sentencepiece_model(*file);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Pieces, letters and space symbols in a row, as no text has them.
std::string random_text(const SentencePieceModel& model, std::mt19937& random) {
  std::string text;
  for (size_t parts = 1 + random() % 30; parts > 0; --parts) {
    const std::string& piece = model.pieces[random() % model.pieces.size()].text;
    switch (random() % 4) {
      case 0:
        text += kSpaceSymbol;
        break;
      case 1:
        text += static_cast<char>('a' + random() % 26);
        break;
      default:
        text += piece;
    }
  }
  return text;
}

// What a cache of words relies on.
TEST(SentencePieceBpe, WordsAreCutByThemselves) {
  const SentencePieceModel model = model_of("bpe.model");
  const SentencePieceBpe bpe(model);
  ASSERT_TRUE(bpe.cuts_words());
  SentencePieceBpe::Work work;
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(model, random);
    std::vector<CutPiece> whole, words;
    bpe.cut(text, work, whole);
    for (std::string_view rest = text; !rest.empty();) {
      size_t at = 0;
      while (rest.substr(at).starts_with(kSpaceSymbol)) at += kSpaceSymbol.size();
      const size_t size = std::min(rest.find(kSpaceSymbol, at), rest.size());
      bpe.cut(rest.substr(0, size), work, words);
      rest.remove_prefix(size);
    }
    ASSERT_EQ(pairs(words), pairs(whole)) << text;
  }
}

TEST(SentencePieceBpe, NotWherePiecesCrossWords) {
  for (const bool unused : {false, true}) {
    SentencePieceModel model = model_of("bpe.model");
    const auto id = static_cast<int32_t>(model.pieces.size());
    const std::string text = unused ? "xyzzy" : "a\u2581b";
    model.pieces.push_back({text, 0, unused ? SentencePieceModel::kUnused : SentencePieceModel::kNormal});
    model.normal.emplace(text, id);
    EXPECT_FALSE(SentencePieceBpe(model).cuts_words());
  }
}

TEST(UnigramModel, CutsAllOfTheText) {
  const SentencePieceModel model = model_of("unigram.model");
  const UnigramModel unigram(model);
  std::vector<UnigramModel::Node> nodes;
  std::mt19937 random(12);
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_text(model, random);
    std::vector<CutPiece> pieces;
    unigram.cut(text, nodes, pieces);
    std::string_view rest = text;
    for (const CutPiece& piece : pieces) {
      if (piece.id != model.unknown_id) {
        EXPECT_EQ(rest.substr(0, piece.size), model.pieces[static_cast<size_t>(piece.id)].text);
      }
      rest.remove_prefix(piece.size);
    }
    EXPECT_TRUE(rest.empty());
  }
}

}  // namespace
}  // namespace telar::tokenizer
