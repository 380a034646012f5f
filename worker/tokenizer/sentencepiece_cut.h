// SentencePiece's two ways of cutting normalized text into pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "worker/tokenizer/sentencepiece_model.h"
#include "worker/tokenizer/static_trie.h"

namespace telar::tokenizer {

struct CutPiece {
  uint32_t size = 0;  // Bytes of the text.
  int32_t id = 0;
};

// The best path by the sum of the pieces' scores. Sums are in single precision, from the left, as the library's: ties
// decide, and are frequent. Immutable.
class UnigramModel {
 public:
  explicit UnigramModel(const SentencePieceModel& model);

  struct Node {
    float score;
    uint32_t size;  // Of the piece that ends here.
    int32_t id;     // -1: not reached.
  };
  // Appends the pieces of `text` in order; `nodes` is working memory.
  void cut(std::string_view text, std::vector<Node>& nodes, std::vector<CutPiece>& pieces) const;

 private:
  static StaticTrie make_trie(const SentencePieceModel& model);

  const StaticTrie trie_;
  std::vector<float> scores_;  // By id.
  const int32_t unknown_id_;
  float unknown_score_ = 0;
};

// Merges neighbours whose joined text is the piece with the highest score, the leftmost of them first. Immutable.
class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(const SentencePieceModel& model);

  // No piece has a space symbol behind another character, so that what is between two such places is cut by itself.
  bool cuts_words() const { return cuts_words_; }

  struct Symbol {
    size_t begin;
    size_t size;
    size_t previous;
    size_t next;
    bool whole;  // Never merged.
  };
  struct Candidate {
    float score;
    size_t left;
    size_t right;
    size_t size;
  };
  // Working memory.
  struct Work {
    std::string_view text;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::unordered_map<std::string_view, size_t> cuts;  // Of pieces that are not to be used: the left part's size.
  };
  void cut(std::string_view text, Work& work, std::vector<CutPiece>& pieces) const;

 private:
  static constexpr size_t kNobody = SIZE_MAX;
  static bool later(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  }
  void split(Work& work) const;
  void note(Work& work, size_t index) const;
  void emit(const Work& work, std::string_view text, std::vector<CutPiece>& pieces) const;

  const SentencePieceModel& model_;
  bool cuts_words_ = true;
};

}  // namespace telar::tokenizer
