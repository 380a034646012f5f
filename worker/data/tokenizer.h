// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::data {

// Immutable after construction; every method may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Ids are in [0, vocab_size()).
  virtual int32_t vocab_size() const = 0;
  // The id that follows each document. encode() never produces it.
  virtual int32_t end_of_document() const = 0;
  // Any bytes are accepted, valid UTF-8 or not; decode(encode(x)) == x.
  virtual std::vector<int32_t> encode(std::string_view bytes) const = 0;
  // end_of_document stands for no bytes. OUT_OF_RANGE names the position and value of a foreign id.
  virtual absl::StatusOr<std::string> decode(std::span<const int32_t> ids) const = 0;
};

// One id a byte value, then the end-of-document id.
inline constexpr int32_t kByteEndOfDocument = 256;
inline constexpr int32_t kByteVocab = 257;

std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace telar::data
