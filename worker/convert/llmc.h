// llm.c's GPT-2 model files. Format: docs/formats/foreign_weights.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/convert/foreign_model.h"

namespace telar::convert {

// Of little-endian 32-bit integers, then the tensors of llmc_tensors() without gaps.
struct LlmcHeader {
  static constexpr size_t kIntegers = 256;
  static constexpr size_t kBytes = kIntegers * sizeof(int32_t);
  static constexpr int32_t kMagic = 20240326;
  static constexpr int32_t kFloat32 = 3, kBfloat16 = 5;  // Versions.
  static constexpr int64_t kVocabMultiple = 128;         // What llm.c pads the vocabulary to.
  enum At : size_t { kMagicAt, kVersionAt, kPositionsAt, kVocabAt, kLayersAt, kHeadsAt, kHiddenAt, kPaddedVocabAt };

  std::array<int32_t, kIntegers> values{};
};

// Whether the file begins with the magic number of such a file.
absl::StatusOr<bool> is_llmc(checkpoint::FileSystem& files, const std::string& path);

// DATA_LOSS and FAILED_PRECONDITION name the file, the byte and what stands there: another magic number or version,
// sizes that make no model, a length that is not what the sizes say.
absl::StatusOr<std::unique_ptr<ForeignModel>> open_llmc(checkpoint::FileSystem& files, const std::string& path);

// FAILED_PRECONDITION names each field of a model that such a file cannot hold.
absl::StatusOr<LlmcHeader> llmc_header(const v1::ModelSpec& model, backend::DType dtype);

}  // namespace telar::convert
