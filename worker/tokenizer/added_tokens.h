// Tokens that are found in the text as it stands, before it is cut into words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/tokenizer/byte_trie.h"

namespace telar::tokenizer {

struct AddedToken {
  int32_t id = 0;
  std::string text;  // Not empty.
  bool special = false;
  bool single_word = false;  // Not beside a character of a word.
  bool strip_left = false;   // Takes the white space before it.
  bool strip_right = false;
};

// Finds them as the `tokenizers` library does: from left to right, the longest at each place; one that is not wanted
// (special, or no single word) hides those that begin inside it. Immutable.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Calls section(text) for what stands between tokens, if anything, and token(id), in order.
  template <typename Section, typename Token>
  void split(std::string_view text, bool special, const Section& section, const Token& token) const {
    size_t start = 0;
    for (Found found{}; find(text, special, start, found);) {
      if (start < found.begin) section(text.substr(start, found.begin - start));
      token(found.id);
      start = found.end;
    }
    if (start < text.size()) section(text.substr(start));
  }

 private:
  struct Found {
    size_t from;   // Where the search goes on.
    size_t begin;  // With what is stripped.
    size_t end;
    int32_t id;
  };
  // The next token from `found.from` on, behind what ended at `start`.
  bool find(std::string_view text, bool special, size_t start, Found& found) const;
  // Where from `at` on a token may begin; text.size() for nowhere.
  size_t candidate(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // Values index tokens_.
  bool only_special_ = true;
  std::string firsts_;  // The bytes that a token begins with.
};

}  // namespace telar::tokenizer
