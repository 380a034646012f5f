// The ids at which a model's texts begin and end, for the config.json of an export.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"

namespace telar::convert {

struct TokenIds {
  std::optional<int64_t> begin;  // None: the model's texts begin with none.
  std::vector<int64_t> end;      // Any of them ends a text.
  bool operator==(const TokenIds&) const = default;
};

// bos_token_id and eos_token_id (an id or a list) of a config.json; nothing if it has neither. Ids that are not below
// `vocab` are left out.
std::optional<TokenIds> token_ids_in_config(std::string_view text, uint64_t vocab);

// What ends a document for the tokenizer; it begins with what, in this order, is known: bos_token of the
// tokenizer_config.json beside the file, the first token of its template, `<s>` of a SentencePiece model. Errors of
// opening it.
absl::StatusOr<TokenIds> token_ids_of(const v1::TokenizerSpec& tokenizer);

}  // namespace telar::convert
