// config.json of a Hugging Face model, as transformers writes and reads it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/backend/dtype.h"
#include "worker/convert/token_ids.h"

namespace telar::convert {

// The model that a GPT-2, Llama or Qwen2 configuration describes, every field set that numbers depend on; max_positions
// of a model with rotary positions is what it was trained for. FAILED_PRECONDITION lists, by key and value, all that we
// cannot compute and that would change the numbers; DATA_LOSS for text that is no such configuration.
absl::StatusOr<v1::ModelSpec> parse_config(std::string_view text, const std::string& path);

// The reverse.
std::string config_text(const v1::ModelSpec& model, backend::DType dtype, const TokenIds& ids);
std::string generation_config_text(const TokenIds& ids);

}  // namespace telar::convert
