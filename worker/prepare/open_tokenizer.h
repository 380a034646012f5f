// The seam between preparing data and the tokenizers.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/data/tokenizer.h"

namespace telar::prepare {

using data::Tokenizer;

// The tokenizer of a complete spec. INVALID_ARGUMENT for a kind that turns no text into ids.
absl::StatusOr<std::unique_ptr<Tokenizer>> open_tokenizer(const v1::TokenizerSpec& spec);

}  // namespace telar::prepare
