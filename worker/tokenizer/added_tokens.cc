#include "worker/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {
namespace {

uint8_t class_of(const Character& character) {
  return character.code == kNoCodePoint ? kOther : classes()[character.code];
}

// The character that ends before `at`, which is above 0.
Character character_before(std::string_view text, size_t at) {
  for (size_t back = 1; back <= 4 && back <= at; ++back) {
    const Character character = character_at(text.substr(0, at), at - back);
    if (character.code != kNoCodePoint && character.length == back) return character;
  }
  return {kNoCodePoint, 1};
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word(character_before(text, begin).code)) &&
         (end == text.size() || !is_word(character_at(text, end).code));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t index = 0; index < tokens_.size(); ++index) {
    const AddedToken& token = tokens_[index];
    trie_.insert(token.text, static_cast<int32_t>(index));
    only_special_ = only_special_ && token.special;
    if (firsts_.find(token.text.front()) == std::string::npos) firsts_.push_back(token.text.front());
  }
}

bool AddedTokens::find(std::string_view text, bool special, size_t start, Found& found) const {
  if (only_special_ && !special) return false;
  for (size_t at = candidate(text, found.from); at < text.size(); at = candidate(text, at)) {
    size_t end = at;
    const int32_t index = trie_.longest(text, at, end);
    if (index == ByteTrie::kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    const size_t begin = std::exchange(at, end);
    if (token.special && !special) continue;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    found = {end, begin, end, token.id};
    if (token.strip_left) {
      while (found.begin > start) {
        const Character before = character_before(text, found.begin);
        if (!(class_of(before) & kSpace)) break;
        found.begin -= before.length;
      }
    }
    if (token.strip_right) {
      while (found.end < text.size()) {
        const Character after = character_at(text, found.end);
        if (!(class_of(after) & kSpace)) break;
        found.end += after.length;
      }
    }
    found.from = found.end;
    return true;
  }
  return false;
}

size_t AddedTokens::candidate(std::string_view text, size_t at) const {
  if (firsts_.size() == 1) return std::min(text.find(firsts_.front(), at), text.size());
  while (at < text.size() && !trie_.begins_with(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

}  // namespace telar::tokenizer
