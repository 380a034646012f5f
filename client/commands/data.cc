#include "client/commands/data.h"

#include <ostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/format.h"
#include "worker/tokenizer/kind.h"

namespace telar::client {

absl::StatusOr<v1::TokenizerSpec> tokenizer_of(const TokenizerOptions& options) {
  using Spec = v1::TokenizerSpec;
  Spec spec;
  const std::string& name = options.tokenizer;
  if (name.empty()) return spec;
  if (name == "byte") {
    spec.set_kind(Spec::BYTE);
    return spec;
  }
  spec.set_path(name);
  spec.set_pattern(options.pattern);
  spec.set_end_of_document(options.end_of_document);
  Spec::Kind kind = tokenizer::kind_of(name);
  if (!options.kind.empty() &&
      (!Spec::Kind_Parse(absl::AsciiStrToUpper(options.kind), &kind) ||
       (kind != Spec::HUGGING_FACE && kind != Spec::TIKTOKEN && kind != Spec::SENTENCEPIECE))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokenizer-kind: got '", options.kind, "', want hugging_face, tiktoken or sentencepiece"));
  }
  if (kind == Spec::KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrCat("--tokenizer: '", name,
                                                   "' is neither byte nor a .json, .tiktoken or .model file; say what "
                                                   "it is by --tokenizer-kind"));
  }
  spec.set_kind(kind);
  return spec;
}

absl::StatusOr<prepare::DataRequest> request_of(const DataOptions& options) {
  auto tokenizer = tokenizer_of(options.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  if (options.vocabulary < 0 || options.vocabulary > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("--vocab: got ", options.vocabulary, ", want 1 to ", INT32_MAX));
  }
  return prepare::DataRequest{options.paths, *std::move(tokenizer), options.vocabulary, options.end_of_document};
}

}  // namespace telar::client
