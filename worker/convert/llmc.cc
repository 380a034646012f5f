#include "worker/convert/llmc.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace telar::convert {
namespace {

constexpr double kEpsilon = 1e-5;  // Of llm.c's LayerNorm; not in the file.

struct Field {
  LlmcHeader::At at;
  const char* name;
};
constexpr Field kSizes[] = {{LlmcHeader::kPositionsAt, "maxT"}, {LlmcHeader::kVocabAt, "V"},
                            {LlmcHeader::kLayersAt, "L"},       {LlmcHeader::kHeadsAt, "NH"},
                            {LlmcHeader::kHiddenAt, "C"},       {LlmcHeader::kPaddedVocabAt, "Vp"}};

std::string at_byte(LlmcHeader::At field) { return absl::StrCat("at byte ", field * sizeof(int32_t)); }

// What is wrong with the header, or nothing.
std::string check(const LlmcHeader& header) {
  const auto& values = header.values;
  if (values[LlmcHeader::kMagicAt] != LlmcHeader::kMagic) {
    return absl::StrCat("magic number ", values[LlmcHeader::kMagicAt], " ", at_byte(LlmcHeader::kMagicAt), ", want ",
                        LlmcHeader::kMagic);
  }
  const int32_t version = values[LlmcHeader::kVersionAt];
  if (version != LlmcHeader::kFloat32 && version != LlmcHeader::kBfloat16) {
    return absl::StrCat("version ", version, " ", at_byte(LlmcHeader::kVersionAt), ", want ", LlmcHeader::kFloat32,
                        " (fp32) or ", LlmcHeader::kBfloat16, " (bf16)");
  }
  for (const Field& size : kSizes) {
    if (values[size.at] <= 0) return absl::StrCat(size.name, " = ", values[size.at], " ", at_byte(size.at));
  }
  if (values[LlmcHeader::kHiddenAt] % values[LlmcHeader::kHeadsAt] != 0) {
    return absl::StrCat("C = ", values[LlmcHeader::kHiddenAt], " ", at_byte(LlmcHeader::kHiddenAt),
                        " is not divisible by NH = ", values[LlmcHeader::kHeadsAt]);
  }
  if (values[LlmcHeader::kPaddedVocabAt] < values[LlmcHeader::kVocabAt]) {
    return absl::StrCat("Vp = ", values[LlmcHeader::kPaddedVocabAt], " ", at_byte(LlmcHeader::kPaddedVocabAt),
                        " is less than V = ", values[LlmcHeader::kVocabAt]);
  }
  return "";
}

v1::ModelSpec model_of(const LlmcHeader& header) {
  const auto size = [&](LlmcHeader::At at) { return static_cast<uint32_t>(header.values[at]); };
  v1::ModelSpec model;
  model.set_architecture(v1::GPT2);
  model.set_layers(size(LlmcHeader::kLayersAt));
  model.set_hidden(size(LlmcHeader::kHiddenAt));
  model.set_heads(size(LlmcHeader::kHeadsAt));
  model.set_kv_heads(model.heads());
  model.set_head_dim(model.hidden() / model.heads());
  model.set_ffn(4 * model.hidden());
  model.set_vocab(size(LlmcHeader::kVocabAt));
  model.set_max_positions(size(LlmcHeader::kPositionsAt));
  model.set_tied_head(true);
  model.set_qkv_bias(true);
  model.set_norm_epsilon(kEpsilon);
  return model;
}

}  // namespace

absl::StatusOr<bool> is_llmc(checkpoint::FileSystem& files, const std::string& path) {
  const auto file = files.open(path);
  if (!file.ok()) return file.status();
  int32_t magic = 0;
  if ((*file)->size() < sizeof(magic)) return false;
  if (auto status = (*file)->read(0, std::as_writable_bytes(std::span(&magic, 1))); !status.ok()) return status;
  return magic == LlmcHeader::kMagic;
}

absl::StatusOr<std::unique_ptr<ForeignModel>> open_llmc(checkpoint::FileSystem& files, const std::string& path) {
  auto file = files.open(path);
  if (!file.ok()) return file.status();
  const auto bad = [&](const std::string& why) {
    return absl::DataLossError(absl::StrCat("llm.c file ", path, ": ", why));
  };
  const uint64_t bytes = (*file)->size();
  LlmcHeader header;
  if (bytes < LlmcHeader::kBytes) {
    return bad(absl::StrCat("ends at byte ", bytes, ", inside its header of ", LlmcHeader::kBytes, " bytes"));
  }
  if (auto status = (*file)->read(0, std::as_writable_bytes(std::span(header.values))); !status.ok()) return status;
  if (const std::string why = check(header); !why.empty()) return bad(why);
  const auto dtype =
      header.values[LlmcHeader::kVersionAt] == LlmcHeader::kFloat32 ? backend::DType::kF32 : backend::DType::kBF16;
  v1::ModelSpec model = model_of(header);
  // Before tensors are listed, and so that no size of theirs overflows.
  const double rows =
      12.0 * model.layers() * model.hidden() + header.values[LlmcHeader::kPaddedVocabAt] + model.max_positions();
  if (rows * model.hidden() > static_cast<double>(bytes)) {
    return bad(absl::StrCat("has ", bytes, " bytes, far less than the ", model.layers(), " layers of width ",
                            model.hidden(), " of its header take"));
  }
  std::vector<StoredTensor> tensors = llmc_tensors(model, header.values[LlmcHeader::kPaddedVocabAt]);
  std::vector<Place> places;
  uint64_t at = LlmcHeader::kBytes;
  for (const StoredTensor& tensor : tensors) {
    places.push_back({0, at, dtype});
    const uint64_t end = at + static_cast<uint64_t>(tensor.elements()) * backend::size_of(dtype);
    if (end > bytes) {
      return bad(
          absl::StrCat("ends at byte ", bytes, ", inside ", tensor.name, ", which is bytes [", at, ", ", end, ")"));
    }
    at = end;
  }
  if (at != bytes) return bad(absl::StrCat("goes on behind byte ", at, ", where its last tensor ends, to ", bytes));
  std::vector<std::unique_ptr<checkpoint::ReadableFile>> opened;
  opened.push_back(*std::move(file));
  return std::make_unique<ForeignModel>("llm.c file", path, std::move(model), std::move(opened), std::move(tensors),
                                        std::move(places));
}

absl::StatusOr<LlmcHeader> llmc_header(const v1::ModelSpec& model, backend::DType dtype) {
  std::vector<std::string> problems;
  const auto want = [&](bool good, const std::string& what) {
    if (!good) problems.push_back(what);
  };
  want(model.architecture() == v1::GPT2, "model.architecture must be gpt2");
  want(model.ffn() == 4 * model.hidden(),
       absl::StrCat("model.ffn = ", model.ffn(), ", want 4 * model.hidden = ", 4 * model.hidden()));
  want(model.tied_head(), "model.tied_head must be true");
  want(std::abs(model.norm_epsilon() - kEpsilon) < 1e-9,
       absl::StrCat("model.norm_epsilon = ", model.norm_epsilon(), ", want ", kEpsilon));
  want(dtype != backend::DType::kF16, "dtype f16, want f32 or bf16");
  if (!problems.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("llm.c files cannot hold this model: ", absl::StrJoin(problems, "; ")));
  }
  LlmcHeader header;
  const int64_t padded =
      (model.vocab() + LlmcHeader::kVocabMultiple - 1) / LlmcHeader::kVocabMultiple * LlmcHeader::kVocabMultiple;
  const auto set = [&](LlmcHeader::At at, int64_t value) { header.values[at] = static_cast<int32_t>(value); };
  set(LlmcHeader::kMagicAt, LlmcHeader::kMagic);
  set(LlmcHeader::kVersionAt, dtype == backend::DType::kF32 ? LlmcHeader::kFloat32 : LlmcHeader::kBfloat16);
  set(LlmcHeader::kPositionsAt, model.max_positions());
  set(LlmcHeader::kVocabAt, model.vocab());
  set(LlmcHeader::kLayersAt, model.layers());
  set(LlmcHeader::kHeadsAt, model.heads());
  set(LlmcHeader::kHiddenAt, model.hidden());
  set(LlmcHeader::kPaddedVocabAt, padded);
  return header;
}

}  // namespace telar::convert
