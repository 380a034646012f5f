// Weights from any format that we read into any that we write.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/convert/open_model.h"

namespace telar::convert {

struct ConvertOptions {
  Format to = Format::kHuggingFace;
  std::optional<backend::DType> dtype;   // Default: OpenedModel::dtype. A checkpoint of ours is F32 always.
  uint64_t shard_bytes = 5'000'000'000;  // Of tensors in one file; a larger tensor has one of its own. Hugging Face.
  std::string tokenizer;                 // A file to go with the weights; default: that of OpenedModel::tokenizer.
  // Called as bytes are written; an error ends the conversion.
  std::function<absl::Status(uint64_t done, uint64_t total)> progress;
};

struct Converted {
  backend::DType dtype = backend::DType::kF32;
  uint64_t bytes = 0;              // Of tensors.
  size_t files = 0;                // That hold them.
  std::vector<std::string> notes;  // What was left out, to be told.
};

// Writes `to`, a directory or, for llm.c, a file, beside itself first: it appears whole, by a rename, or not at all.
// ALREADY_EXISTS when something of that name is there, FAILED_PRECONDITION for a model that the format cannot hold.
absl::StatusOr<Converted> convert(checkpoint::FileSystem& files, const OpenedModel& from, const std::string& to,
                                  const ConvertOptions& options);

}  // namespace telar::convert
