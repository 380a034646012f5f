// A model of any kind that we read, found out by looking at it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/backend/dtype.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/weight_source.h"
#include "worker/convert/token_ids.h"

namespace telar::convert {

enum class Format : uint8_t {
  kTelar,        // A published checkpoint of ours: a directory with a manifest.json.
  kHuggingFace,  // A directory with a config.json.
  kLlmc,         // A file that begins with llm.c's magic number.
};
std::string_view name_of(Format format);  // "telar", "hf", "llmc"

// NOT_FOUND when there is nothing, FAILED_PRECONDITION when it is nothing that we know.
absl::StatusOr<Format> format_of(checkpoint::FileSystem& files, const std::string& path);

struct OpenedModel {
  Format format = Format::kTelar;
  std::unique_ptr<checkpoint::WeightSource> weights;  // The masters of every tensor of `model`.
  v1::ModelSpec model;                                // Complete.
  // What the weights are stored as, or of a run of ours what it computed with.
  backend::DType dtype = backend::DType::kF32;
  v1::TokenizerSpec tokenizer;  // That goes with it, and may lie on another host; of no kind: not known.
  std::optional<TokenIds> ids;  // As its own config.json tells them, or that of the model that the run started from.
};

// Everything about it is checked but the tensors' bytes. `files` must outlive the weights.
absl::StatusOr<OpenedModel> open_model(checkpoint::FileSystem& files, const std::string& path);

// FAILED_PRECONDITION names every field of `spec`'s model that differs from the one at `path`, with both values.
absl::Status check_same_model(const v1::ModelSpec& spec, const v1::ModelSpec& found, const std::string& path);

}  // namespace telar::convert
