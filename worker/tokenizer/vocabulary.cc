#include "worker/tokenizer/vocabulary.h"

#include "absl/strings/str_cat.h"

namespace telar::tokenizer {

void Vocabulary::add(int32_t id, std::string_view bytes, bool special) {
  if (id >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
  tokens_[static_cast<size_t>(id)] = {std::string(bytes), true, special};
}

absl::StatusOr<std::string> Vocabulary::decode(std::span<const int32_t> ids, bool special_tokens) const {
  std::string bytes;
  for (size_t at = 0; at < ids.size(); ++at) {
    if (ids[at] < 0 || ids[at] >= size()) {
      return absl::OutOfRangeError(
          absl::StrCat("token ", at, ": id ", ids[at], " is outside the vocabulary of ", size()));
    }
    const Token& token = tokens_[static_cast<size_t>(ids[at])];
    if (special_tokens || !token.special) bytes.append(token.bytes);
  }
  return bytes;
}

}  // namespace telar::tokenizer
