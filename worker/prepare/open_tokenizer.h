// The tokenizer that a dataset is made with.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::prepare {

using tokenizer::Tokenizer;

// INVALID_ARGUMENT for a kind that turns no text into ids, and for a tokenizer without a token that ends a document.
absl::StatusOr<std::unique_ptr<Tokenizer>> open_tokenizer(const v1::TokenizerSpec& spec);

}  // namespace telar::prepare
