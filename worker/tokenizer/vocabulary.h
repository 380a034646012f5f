// What the ids stand for.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::tokenizer {

inline constexpr int32_t kMostIds = 1 << 24;  // Ids are below it: a file must not make us take memory at will.

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
// Ids by text, looked up by string_view.
using TextMap = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// Filled once, then immutable.
class Vocabulary {
 public:
  // Takes `id`, which is in [0, kMostIds) and free, for `bytes`.
  void add(int32_t id, std::string_view bytes, bool special);
  void make_special(int32_t id) { tokens_[static_cast<size_t>(id)].special = true; }

  bool has(int64_t id) const { return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].used; }
  // Empty where there is no token.
  std::string_view bytes(int32_t id) const { return tokens_[static_cast<size_t>(id)].bytes; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // The greatest id + 1.

  // As Tokenizer::decode.
  absl::StatusOr<std::string> decode(std::span<const int32_t> ids, bool special_tokens) const;

 private:
  struct Token {
    std::string bytes;
    bool used = false;
    bool special = false;
  };
  std::vector<Token> tokens_;
};

}  // namespace telar::tokenizer
