#include "worker/prepare/open_tokenizer.h"

#include "absl/strings/str_cat.h"

namespace telar::prepare {

absl::StatusOr<std::unique_ptr<Tokenizer>> open_tokenizer(const v1::TokenizerSpec& spec) {
  auto opened = tokenizer::open(spec);
  if (!opened.ok()) return opened.status();
  if ((*opened)->end_of_document() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer ", spec.path(), ": tells of no token that ends a document; name one by its text"));
  }
  return opened;
}

}  // namespace telar::prepare
