// Which kind of tokenizer a file name stands for. Apart from tokenizer.h so that the coordinator needs no libraries.
#pragma once

#include <string_view>

#include "telar/v1/spec.pb.h"

namespace telar::tokenizer {

// *.json: HUGGING_FACE; tokenizer.model in Llama 3's format cannot be told by its name, so *.model: SENTENCEPIECE;
// *.tiktoken: TIKTOKEN; else KIND_UNSPECIFIED.
inline v1::TokenizerSpec::Kind kind_of(std::string_view path) {
  if (path.ends_with(".json")) return v1::TokenizerSpec::HUGGING_FACE;
  if (path.ends_with(".tiktoken")) return v1::TokenizerSpec::TIKTOKEN;
  if (path.ends_with(".model")) return v1::TokenizerSpec::SENTENCEPIECE;
  return v1::TokenizerSpec::KIND_UNSPECIFIED;
}

}  // namespace telar::tokenizer
