// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"

namespace telar::tokenizer {

struct EncodeOptions {
  // Special tokens that the text spells out ("<|endoftext|>") become their ids. Otherwise they are text like any
  // other, which is what text from outside needs.
  bool special_tokens = false;
  // Adds what the file's template puts around a text, such as a token for its beginning.
  bool template_tokens = false;
};

// Immutable after construction; every method may be called from several threads at once, and threads do not slow each
// other down. docs/formats/tokenizers.md says what each kind does with which file.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Ids are in [0, vocab_size()). Files may leave some of them without a token; those stand for no bytes.
  virtual int32_t vocab_size() const = 0;
  // The id that follows each document; -1 where the file tells of none. encode() makes it only of special tokens.
  virtual int32_t end_of_document() const = 0;
  // The id of the token, special or not, whose text is `text`.
  virtual std::optional<int32_t> find(std::string_view text) const = 0;

  // Any bytes are accepted, valid UTF-8 or not: a byte that belongs to no well-formed sequence is a character of no
  // class, and of the byte-level kinds decode(encode(x)) == x unless the file normalizes. SentencePiece makes U+FFFD
  // of it.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The same, behind what is in `ids`.
  void append(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const {
    do_encode(text, options, ids);
  }
  // end_of_document and other special tokens stand for no bytes unless `special_tokens`. OUT_OF_RANGE names the
  // position and value of a foreign id. The bytes need not be valid UTF-8: a character may be cut in two.
  absl::StatusOr<std::string> decode(std::span<const int32_t> ids, bool special_tokens = false) const {
    return do_decode(ids, special_tokens);
  }
  // For people to read: valid UTF-8 in one line, other bytes as \xNN; "<id>" where there is no token.
  std::string name_of(int32_t id) const;

 private:
  virtual void do_encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const = 0;
  virtual absl::StatusOr<std::string> do_decode(std::span<const int32_t> ids, bool special_tokens) const = 0;
};

// One id a byte value, then the end-of-document id, whose text is "<|endoftext|>".
inline constexpr int32_t kByteEndOfDocument = 256;
inline constexpr int32_t kByteVocab = 257;

std::unique_ptr<Tokenizer> make_byte_tokenizer();

// The tokenizer of `spec`, whose kind may be left to the name of its path; see kind_of(). INVALID_ARGUMENT for a spec
// that asks for none; NOT_FOUND, PERMISSION_DENIED; INVALID_ARGUMENT with file, component and rule for a file that is
// broken or asks for what we do not know.
absl::StatusOr<std::unique_ptr<Tokenizer>> open(const v1::TokenizerSpec& spec);

}  // namespace telar::tokenizer
