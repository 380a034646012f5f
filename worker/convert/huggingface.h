// Models in a directory as Hugging Face's transformers writes them. Names: docs/formats/foreign_weights.md.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/convert/foreign_model.h"

namespace telar::convert {

inline constexpr const char* kConfigName = "config.json";
inline constexpr const char* kGenerationConfigName = "generation_config.json";
inline constexpr const char* kWeightsName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

// Reads config.json and the headers of the weight files, no tensor bytes, except of a head that is stored although it
// is tied, which must equal the embeddings. Every tensor of the model must be there once, in its shape, as F32, BF16 or
// F16, and nothing else but buffers that hold no weights: DATA_LOSS and FAILED_PRECONDITION name tensors and files.
absl::StatusOr<std::unique_ptr<ForeignModel>> open_huggingface(checkpoint::FileSystem& files,
                                                               const std::string& directory);

}  // namespace telar::convert
