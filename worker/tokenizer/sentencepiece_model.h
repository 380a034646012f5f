// A SentencePiece .model: a serialized sentencepiece.ModelProto, and its table for normalization.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/tokenizer/byte_trie.h"
#include "worker/tokenizer/vocabulary.h"

namespace telar::tokenizer {

inline constexpr std::string_view kSpaceSymbol = "\u2581";  // Stands for a space.

// Field numbers and defaults are those of sentencepiece_model.proto.
struct SentencePieceModel {
  enum Type : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  enum Algorithm : uint8_t { kUnigram = 1, kBpe = 2 };
  struct Piece {
    std::string text;
    float score = 0;
    int type = kNormal;
  };
  struct Normalization {
    std::string table;  // precompiled_charsmap
    bool add_dummy_prefix = true;
    bool remove_extra_whitespaces = true;
    bool escape_whitespaces = true;
  };

  std::vector<Piece> pieces;
  int algorithm = kUnigram;
  bool whitespace_as_suffix = false;
  bool byte_fallback = false;
  int32_t end_id = 2;
  std::string unknown_surface = " \u2047 ";
  Normalization normalization;
  Normalization denormalization;

  // Filled from the pieces.
  int32_t unknown_id = -1;
  int32_t byte_ids[256];
  TextMap normal;    // Pieces that text can become, by their text.
  TextMap reserved;  // The others.
  ByteTrie user_defined;
};

// INVALID_ARGUMENT, without the file's name: component and rule.
absl::StatusOr<SentencePieceModel> parse_sentencepiece_model(std::string_view file);

// SentencePiece's normalization. Immutable.
class SentencePieceNormalizer {
 public:
  // INVALID_ARGUMENT for a table whose sizes contradict each other. `user_defined` lives as long; its keys stay as
  // they are.
  static absl::StatusOr<SentencePieceNormalizer> create(const SentencePieceModel::Normalization& rules,
                                                        bool whitespace_as_suffix, const ByteTrie& user_defined);
  // Makes `out` that of `text`.
  void normalize(std::string_view text, std::string& out) const;

 private:
  SentencePieceNormalizer() = default;
  // What the beginning of `text`, which is not empty, becomes, and how many bytes that is.
  std::pair<std::string_view, size_t> prefix(std::string_view text) const;
  // The value of the longest key that `text` begins with, and its length, which is 0 if there is none.
  std::pair<uint32_t, size_t> longest(std::string_view text) const;
  // Whether some key begins with `text`.
  bool leads_on(std::string_view text) const;
  static uint32_t offset(uint32_t unit);
  uint32_t root() const;
  // Goes on from `node` by `byte`: the unit there, or null.
  const uint32_t* step(uint32_t& node, unsigned char byte) const;
  void find_plain();
  // Where `text`, at `at`, has the byte `at` as itself whatever comes behind it.
  bool is_plain(std::string_view text, size_t at) const {
    const uint8_t plain = plain_[static_cast<unsigned char>(text[at])];
    return plain == kAlways ||
           (plain == kBeforeAscii && (at + 1 == text.size() || static_cast<unsigned char>(text[at + 1]) < 0x80));
  }

  std::vector<uint32_t> units_;  // A double array as Darts-clone lays it out.
  std::string replacements_;     // Ended by zeros; the values are positions in it.
  enum Plain : uint8_t { kNever, kBeforeAscii, kAlways };
  uint8_t plain_[256] = {};  // Bytes that prefix() leaves as they are.
  bool add_dummy_prefix_ = true;
  bool remove_extra_whitespaces_ = true;
  bool escape_whitespaces_ = true;
  bool whitespace_as_suffix_ = false;
  const ByteTrie* user_defined_ = nullptr;
};

}  // namespace telar::tokenizer
