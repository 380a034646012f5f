// The formats that tokenizers come in, one function each. `path` names a file that exists; errors name it, the
// component and the rule that it breaks.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::tokenizer {

// A tokenizer.json; tokenizer_config.json beside it tells the end of a document.
absl::StatusOr<std::unique_ptr<Tokenizer>> open_hugging_face(const v1::TokenizerSpec& spec);

// Lines of base64 and rank.
absl::StatusOr<std::unique_ptr<Tokenizer>> open_tiktoken(const v1::TokenizerSpec& spec);

// A serialized sentencepiece.ModelProto of a unigram or BPE model.
absl::StatusOr<std::unique_ptr<Tokenizer>> open_sentencepiece(const v1::TokenizerSpec& spec);

inline constexpr size_t kMostFileBytes = 256u << 20;

// A whole file. NOT_FOUND, PERMISSION_DENIED, ...; INVALID_ARGUMENT for what is no regular file or too large.
absl::StatusOr<std::string> read_tokenizer_file(const std::string& path);

// INVALID_ARGUMENT, in one line whatever of the file is in `why`.
absl::Status refused_file(const v1::TokenizerSpec& spec, const std::string& why);

// That spec.end_of_document is the text of no token of spec.path.
absl::Status unknown_end_of_document(const v1::TokenizerSpec& spec);

}  // namespace telar::tokenizer
