#include "worker/plan/resolve_tokenizer.h"

#include <algorithm>
#include <string>

#include "worker/tokenizer/kind.h"

namespace telar::plan {
namespace {

using Kind = v1::TokenizerSpec;

// As job.yaml has them.
std::string lower(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

void default_kind(v1::DataSpec::Format format, v1::TokenizerSpec& tokenizer, Problems& problems) {
  if (tokenizer.kind() != Kind::KIND_UNSPECIFIED) return;
  if (!tokenizer.path().empty()) {
    tokenizer.set_kind(tokenizer::kind_of(tokenizer.path()));
    if (tokenizer.kind() == Kind::KIND_UNSPECIFIED) {
      problems.add("tokenizer.kind", "not given, and '{}' ends in neither .json, .tiktoken nor .model",
                   tokenizer.path());
    }
  } else if (format == v1::DataSpec::TEXT) {
    tokenizer.set_kind(Kind::BYTE);
  } else if (format != v1::DataSpec::PREPARED) {
    tokenizer.set_kind(Kind::NONE);
  }
}

// Options that only some kinds have.
void options(const v1::TokenizerSpec& tokenizer, Problems& problems) {
  const std::string kind = lower(Kind::Kind_Name(tokenizer.kind()));
  const bool tiktoken = tokenizer.kind() == Kind::TIKTOKEN;
  const bool file = tiktoken || tokenizer.kind() == Kind::HUGGING_FACE || tokenizer.kind() == Kind::SENTENCEPIECE;
  if (file && (tokenizer.path().empty() || tokenizer.path()[0] != '/')) {
    problems.add("tokenizer.path", "'{}' must be an absolute path on the workers", tokenizer.path());
  }
  if (!file && !tokenizer.path().empty()) problems.add("tokenizer.path", "does not go with tokenizer.kind {}", kind);
  if (tiktoken && tokenizer.pattern().empty()) {
    problems.add("tokenizer.pattern", "not given; use gpt2, cl100k, o200k, llama3 or a regular expression");
  }
  if (!tiktoken && !tokenizer.pattern().empty()) {
    problems.add("tokenizer.pattern", "does not go with tokenizer.kind {}; only tiktoken files leave it open", kind);
  }
  if (!tiktoken && !tokenizer.special_tokens().empty()) {
    problems.add("tokenizer.special_tokens", "do not go with tokenizer.kind {}; only tiktoken files leave them open",
                 kind);
  }
  if (!file && tokenizer.kind() != Kind::NONE && !tokenizer.end_of_document().empty()) {
    problems.add("tokenizer.end_of_document", "does not go with tokenizer.kind {}", kind);
  }
}

}  // namespace

void resolve_tokenizer(v1::JobSpec& spec, Problems& problems) {
  v1::TokenizerSpec& tokenizer = *spec.mutable_tokenizer();
  const v1::DataSpec::Format format = spec.data().format();
  default_kind(format, tokenizer, problems);
  if (tokenizer.kind() == Kind::KIND_UNSPECIFIED) return;
  const std::string kind = lower(Kind::Kind_Name(tokenizer.kind()));
  if (format == v1::DataSpec::TEXT && tokenizer.kind() == Kind::NONE) {
    problems.add("tokenizer.kind", "none does not go with data.format text; use byte");
  } else if (format == v1::DataSpec::TEXT && tokenizer.kind() != Kind::BYTE) {
    problems.add("tokenizer.kind", "{} does not go with data.format text; run `telar data prepare` and use prepared",
                 kind);
  } else if (format == v1::DataSpec::LLMC_BIN && tokenizer.kind() == Kind::BYTE) {
    problems.add("tokenizer.kind", "byte does not go with data.format llmc_bin; use none");
  }
  options(tokenizer, problems);
}

}  // namespace telar::plan
