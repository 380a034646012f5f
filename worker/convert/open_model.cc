#include "worker/convert/open_model.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/pieces.h"
#include "worker/convert/huggingface.h"
#include "worker/convert/llmc.h"
#include "worker/data/prepared.h"
#include "worker/data/token_source.h"
#include "worker/model/parameters.h"
#include "worker/tokenizer/kind.h"

namespace telar::convert {
namespace {

using checkpoint::FileSystem;

// Of a Hugging Face directory; the first that is there.
constexpr const char* kTokenizerNames[] = {"tokenizer.json", "tokenizer.model"};
constexpr uint64_t kMostTextBytes = uint64_t{64} << 20;

backend::DType dtype_of(v1::Precision precision) {
  if (precision == v1::BF16 || precision == v1::FP8) return backend::DType::kBF16;
  return precision == v1::FP16 ? backend::DType::kF16 : backend::DType::kF32;
}

// That of the spec, or the one that its prepared data was made with.
v1::TokenizerSpec tokenizer_of(FileSystem& files, const v1::JobSpec& spec) {
  const v1::TokenizerSpec& named = spec.tokenizer();
  const bool none = named.kind() == v1::TokenizerSpec::KIND_UNSPECIFIED || named.kind() == v1::TokenizerSpec::NONE;
  if (!none || !named.path().empty() || spec.data().format() != v1::DataSpec::PREPARED) return named;
  std::vector<std::string> paths(spec.data().train().begin(), spec.data().train().end());
  for (const v1::DataSource& source : spec.data().sources()) {
    paths.insert(paths.end(), source.train().begin(), source.train().end());
  }
  for (const std::string& path : paths) {
    const auto directories = data::expand_paths({path});
    for (const std::string& directory : directories.value_or(std::vector<std::string>())) {
      const std::string described = absl::StrCat(directory, "/", data::kDatasetFile);
      const auto text = checkpoint::read_file(files, described, kMostTextBytes);
      const auto dataset = text.ok() ? data::parse_dataset(*text, described) : text.status();
      if (dataset.ok()) return data::tokenizer_spec(directory, dataset->tokenizer);
    }
  }
  return named;
}

// Of a Hugging Face directory, if it is one and can be read.
std::optional<TokenIds> ids_of(FileSystem& files, const std::string& directory, const v1::ModelSpec& model) {
  const auto text = checkpoint::read_file(files, absl::StrCat(directory, "/", kConfigName), kMostTextBytes);
  return text.ok() ? token_ids_in_config(*text, model.vocab()) : std::nullopt;
}

absl::StatusOr<OpenedModel> open_telar(FileSystem& files, const std::string& path) {
  auto reader = checkpoint::CheckpointReader::open(files, path);
  if (!reader.ok()) return reader.status();
  const auto bad = [&](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint ", path, ": ", why));
  };
  v1::JobSpec spec;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const std::string& json = (*reader)->manifest().spec_json;
  if (json.empty()) return bad("its manifest has no spec, so nothing tells of its model");
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &spec, options);
  if (!parsed.ok()) return bad(absl::StrCat("its spec: ", parsed.message().ToString()));
  constexpr checkpoint::TensorKind kMasters[] = {checkpoint::TensorKind::kMaster};
  if (spec.model().heads() == 0 || spec.model().kv_heads() == 0) return bad("its spec is not complete: model.heads");
  const auto wanted = checkpoint::tensors_of(model::parameter_groups(spec.model()), kMasters);
  if (auto status = checkpoint::check_has(**reader, wanted); !status.ok()) return status;
  OpenedModel opened;
  opened.model = spec.model();
  // What the run has seen; for whoever reads the model afterwards.
  if (opened.model.max_positions() == 0) opened.model.set_max_positions(spec.batch().sequence_length());
  opened.dtype = dtype_of(spec.precision().compute());
  opened.tokenizer = tokenizer_of(files, spec);
  if (!spec.checkpoint().init_from().empty()) {
    opened.ids = ids_of(files, spec.checkpoint().init_from(), spec.model());
  }
  opened.weights = *std::move(reader);
  return opened;
}

absl::StatusOr<OpenedModel> open_foreign(FileSystem& files, const std::string& path, Format format) {
  auto foreign = format == Format::kLlmc ? open_llmc(files, path) : open_huggingface(files, path);
  if (!foreign.ok()) return foreign.status();
  OpenedModel opened;
  opened.format = format;
  opened.model = (*foreign)->model();
  opened.dtype = (*foreign)->dtype();
  if (format == Format::kHuggingFace) {
    opened.ids = ids_of(files, path, opened.model);
    for (const char* name : kTokenizerNames) {
      const std::string tokenizer = absl::StrCat(path, "/", name);
      if (!files.open(tokenizer).ok()) continue;
      opened.tokenizer.set_kind(tokenizer::kind_of(tokenizer));
      opened.tokenizer.set_path(tokenizer);
      break;
    }
  }
  opened.weights = *std::move(foreign);
  return opened;
}

class Differences {
 public:
  template <typename T>
  void compare(const std::string& field, const T& wanted, const T& found) {
    if (!(wanted == found)) add(field, absl::StrCat(wanted), absl::StrCat(found));
  }
  void compare_flags(const std::string& field, bool wanted, bool found) {
    if (wanted != found) add(field, wanted ? "true" : "false", found ? "true" : "false");
  }
  // Some files have them rounded to f32.
  void compare_numbers(const std::string& field, double wanted, double found) {
    if (std::abs(wanted - found) > 1e-6 * std::abs(wanted)) add(field, absl::StrCat(wanted), absl::StrCat(found));
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  void add(const std::string& field, const std::string& wanted, const std::string& found) {
    texts_.push_back(absl::StrCat("model.", field, " is ", found, ", the spec has ", wanted));
  }
  std::vector<std::string> texts_;
};

void compare_rope(const v1::ModelSpec& spec, const v1::ModelSpec& found, Differences& differences) {
  differences.compare_numbers("rope_theta", spec.rope_theta(), found.rope_theta());
  const v1::RopeScaling &a = spec.rope_scaling(), &b = found.rope_scaling();
  differences.compare_numbers("rope_scaling.factor", a.factor(), b.factor());
  differences.compare_numbers("rope_scaling.low_freq_factor", a.low_freq_factor(), b.low_freq_factor());
  differences.compare_numbers("rope_scaling.high_freq_factor", a.high_freq_factor(), b.high_freq_factor());
  differences.compare("rope_scaling.original_max_positions", a.original_max_positions(), b.original_max_positions());
}

}  // namespace

std::string_view name_of(Format format) {
  switch (format) {
    case Format::kTelar:
      return "telar";
    case Format::kHuggingFace:
      return "hf";
    case Format::kLlmc:
      return "llmc";
  }
  return "?";
}

absl::StatusOr<Format> format_of(FileSystem& files, const std::string& path) {
  const auto unknown = [&](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", why));
  };
  const auto names = files.list(path);
  if (names.ok()) {
    const auto has = [&](const char* name) { return std::find(names->begin(), names->end(), name) != names->end(); };
    if (has(checkpoint::kManifestName)) return Format::kTelar;
    if (has(kConfigName)) return Format::kHuggingFace;
    if (has("ckpt")) return unknown("a run; name one of its checkpoints, ckpt/step-*");
    return unknown(
        absl::StrCat("a directory without ", checkpoint::kManifestName, " (ours) or ", kConfigName, " (Hugging Face)"));
  }
  const auto llmc = is_llmc(files, path);
  if (!llmc.ok()) return llmc.status();
  if (*llmc) return Format::kLlmc;
  if (path.ends_with(".safetensors")) return unknown("name the directory that it is in, with its config.json");
  return unknown(absl::StrCat("a file that does not begin with llm.c's magic number ", LlmcHeader::kMagic));
}

absl::StatusOr<OpenedModel> open_model(FileSystem& files, const std::string& path) {
  const auto format = format_of(files, path);
  if (!format.ok()) return format.status();
  return *format == Format::kTelar ? open_telar(files, path) : open_foreign(files, path, *format);
}

absl::Status check_same_model(const v1::ModelSpec& spec, const v1::ModelSpec& found, const std::string& path) {
  Differences differences;
  const auto name = [](const v1::ModelSpec& model) { return v1::Architecture_Name(model.architecture()); };
  differences.compare("architecture", name(spec), name(found));
  differences.compare("layers", spec.layers(), found.layers());
  differences.compare("hidden", spec.hidden(), found.hidden());
  differences.compare("heads", spec.heads(), found.heads());
  differences.compare("kv_heads", spec.kv_heads(), found.kv_heads());
  differences.compare("head_dim", spec.head_dim(), found.head_dim());
  differences.compare("ffn", spec.ffn(), found.ffn());
  differences.compare("vocab", spec.vocab(), found.vocab());
  differences.compare_flags("tied_head", spec.tied_head(), found.tied_head());
  differences.compare_flags("qkv_bias", spec.qkv_bias(), found.qkv_bias());
  differences.compare_numbers("norm_epsilon", spec.norm_epsilon(), found.norm_epsilon());
  if (spec.architecture() == v1::GPT2) {
    differences.compare("max_positions", spec.max_positions(), found.max_positions());
  } else {
    compare_rope(spec, found, differences);
  }
  if (differences.texts().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", absl::StrJoin(differences.texts(), "; "),
                                                    ". `telar ckpt convert --print-model` prints the fields to use"));
}

}  // namespace telar::convert
