#include "worker/prepare/open_tokenizer.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace telar::prepare {

absl::StatusOr<std::unique_ptr<Tokenizer>> open_tokenizer(const v1::TokenizerSpec& spec) {
  if (spec.kind() == v1::TokenizerSpec::BYTE) return data::make_byte_tokenizer();
  return absl::InvalidArgumentError(absl::StrCat(
      "tokenizer ", absl::AsciiStrToLower(v1::TokenizerSpec::Kind_Name(spec.kind())), ": cannot be opened; use byte"));
}

}  // namespace telar::prepare
