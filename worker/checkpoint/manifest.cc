#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/json_fields.h"
#include "worker/checkpoint/safetensors.h"

namespace telar::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kKinds = {TensorKind::kWeight, TensorKind::kMaster, TensorKind::kExpAvg, TensorKind::kExpAvgSq,
                               TensorKind::kFp8Amax};
constexpr std::array kStoredDtypes = {backend::DType::kF32, backend::DType::kBF16, backend::DType::kF16,
                                      backend::DType::kI32, backend::DType::kU8};

// A manifest ends with this and nothing after it; the CRC is that of all bytes before.
std::string seal(uint32_t crc) { return absl::StrCat(",\n \"manifest_crc32c\": \"", crc_text(crc), "\"\n}\n"); }

uint32_t small_number(const Json& object, const char* key) {
  const uint64_t value = count_field(object, key);
  if (value > UINT32_MAX) throw MalformedField(absl::StrCat(key, " is ", value, ", more than 32 bits"));
  return static_cast<uint32_t>(value);
}

OptimizerState optimizer_from(const Json& json) {
  OptimizerState state{count_field(json, "applied_steps"), count_field(json, "skipped_steps"),
                       count_field(json, "good_steps")};
  const Json& scale = json.at("loss_scale");
  if (!scale.is_number() || scale.get<double>() < 0) {
    throw MalformedField(absl::StrCat("loss_scale is ", scale.dump(), ", not a number from 0 on"));
  }
  state.loss_scale = scale.get<double>();
  return state;
}

std::vector<int64_t> sizes(const Json& object, const char* key) {
  std::vector<int64_t> result;
  for (const Json& one : object.at(key)) {
    if (!one.is_number_unsigned() || one.get<uint64_t>() > INT64_MAX) {
      throw MalformedField(absl::StrCat(key, " holds ", one.dump(), ", not a size"));
    }
    result.push_back(one.get<int64_t>());
  }
  return result;
}

Json to_json(const TensorEntry& tensor) {
  Json json = {{"name", tensor.name},
               {"kind", name_of(tensor.kind)},
               {"shape", tensor.shape},
               {"dtype", dtype_name(tensor.dtype)}};
  if (!tensor.tied_to.empty()) json["tied_to"] = tensor.tied_to;
  json["chunks"] = Json::array();
  for (const Chunk& chunk : tensor.chunks) {
    json["chunks"].push_back(Json{{"file", chunk.file},
                                  {"key", chunk.key},
                                  {"offset", chunk.offset},
                                  {"shape", chunk.shape},
                                  {"crc32c", crc_text(chunk.crc32c)}});
  }
  return json;
}

TensorEntry tensor_from(const Json& json) {
  TensorEntry tensor;
  tensor.name = json.at("name").get<std::string>();
  const auto kind = kind_from(json.at("kind").get<std::string>());
  if (!kind) throw MalformedField(absl::StrCat("tensor ", tensor.name, " has kind ", json.at("kind").dump()));
  tensor.kind = *kind;
  tensor.shape = sizes(json, "shape");
  const auto dtype = json.at("dtype").get<std::string>();
  const auto known = std::find_if(kStoredDtypes.begin(), kStoredDtypes.end(),
                                  [&](backend::DType one) { return dtype_name(one) == dtype; });
  if (known == kStoredDtypes.end()) throw MalformedField(absl::StrCat("tensor ", tensor.name, " has dtype ", dtype));
  tensor.dtype = *known;
  tensor.tied_to = json.value("tied_to", "");
  for (const Json& chunk : json.at("chunks")) {
    tensor.chunks.push_back({chunk.at("file").get<std::string>(), chunk.at("key").get<std::string>(),
                             sizes(chunk, "offset"), sizes(chunk, "shape"), crc_field(chunk, "crc32c")});
  }
  return tensor;
}

std::map<std::string, uint64_t> counts(const Json& json) {
  std::map<std::string, uint64_t> counts;
  for (auto one = json.begin(); one != json.end(); ++one) counts[one.key()] = count_field(json, one.key().c_str());
  return counts;
}

std::map<std::string, SourceExtent> extents(const Json& json) {
  std::map<std::string, SourceExtent> sources;
  for (auto one = json.begin(); one != json.end(); ++one) {
    sources[one.key()] = {count_field(*one, "rows"), count_field(*one, "sequence_length"),
                          count_field(*one, "train_tokens")};
  }
  return sources;
}

Manifest manifest_from(const Json& json) {
  Manifest manifest;
  manifest.format_version = small_number(json, "format_version");
  manifest.job = json.at("job").get<std::string>();
  manifest.epoch = count_field(json, "epoch");
  manifest.step = count_field(json, "step");
  manifest.consumed_samples = count_field(json, "consumed_samples");
  if (json.contains("consumed_sources")) manifest.consumed_sources = counts(json.at("consumed_sources"));
  if (json.contains("blend_start")) {
    const Json& start = json.at("blend_start");
    manifest.blend_start = BlendStart{count_field(start, "samples"), counts(start.at("consumed"))};
  }
  if (json.contains("sources")) manifest.sources = extents(json.at("sources"));
  manifest.seed = count_field(json, "seed");
  if (json.contains("optimizer")) manifest.optimizer = optimizer_from(json.at("optimizer"));
  if (json.contains("eval_loss")) manifest.eval_loss = json.at("eval_loss").get<double>();
  if (const Json& spec = json.at("spec"); !spec.is_null()) manifest.spec_json = spec.dump();
  const Json& layout = json.at("layout");
  manifest.layout = {small_number(layout, "tp"), small_number(layout, "pp"), small_number(layout, "dp"),
                     small_number(layout, "zero")};
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(
        {file.at("name").get<std::string>(), count_field(file, "bytes"), crc_field(file, "crc32c")});
  }
  for (const Json& tensor : json.at("tensors")) manifest.tensors.push_back(tensor_from(tensor));
  return manifest;
}

// True when two boxes have an element in common.
bool overlap(const Chunk& a, const Chunk& b) {
  for (size_t axis = 0; axis < a.shape.size(); ++axis) {
    if (a.offset[axis] + a.shape[axis] <= b.offset[axis] || b.offset[axis] + b.shape[axis] <= a.offset[axis]) {
      return false;
    }
  }
  return true;
}

// What is wrong with the chunks of one tensor, or nothing.
std::string check_cover(const TensorEntry& tensor, uint64_t bytes, const std::set<std::string>& files, Cover cover) {
  uint64_t covered = 0;
  for (size_t at = 0; at < tensor.chunks.size(); ++at) {
    const Chunk& chunk = tensor.chunks[at];
    if (!files.contains(chunk.file)) return absl::StrCat("has a chunk in ", chunk.file, ", which is not listed");
    if (chunk.offset.size() != tensor.shape.size() || chunk.shape.size() != tensor.shape.size()) {
      return absl::StrCat("has a chunk of ", chunk.shape.size(), " axes");
    }
    for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      if (chunk.offset[axis] < 0 || chunk.shape[axis] <= 0 || chunk.offset[axis] > tensor.shape[axis] ||
          chunk.shape[axis] > tensor.shape[axis] - chunk.offset[axis]) {
        return absl::StrCat("has chunk ", at, " outside its shape in axis ", axis);
      }
    }
    covered += bytes_of(dtype_name(tensor.dtype), chunk.shape).value();  // Inside the tensor, whose bytes are known.
    for (size_t before = 0; before < at; ++before) {
      if (overlap(tensor.chunks[before], chunk)) {
        return absl::StrCat("has chunks ", before, " and ", at, " overlap, of ", tensor.chunks[before].file, " and ",
                            chunk.file);
      }
    }
  }
  if (covered != bytes && cover == Cover::kWhole)
    return absl::StrCat("has chunks of ", covered, " bytes, but is ", bytes);
  return "";
}

// What is wrong with the manifest, or nothing.
std::string check(const Manifest& manifest, Cover cover) {
  std::set<std::string> files;
  for (const FileEntry& file : manifest.files) {
    if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos) {
      return absl::StrCat("file name \"", file.name, "\" is not a plain name");
    }
    if (!files.insert(file.name).second) return absl::StrCat("file ", file.name, " stands twice");
  }
  std::set<std::pair<std::string, TensorKind>> names;
  for (const TensorEntry& tensor : manifest.tensors) {
    const std::string who = absl::StrCat(name_of(tensor.kind), " ", tensor.name);
    if (!names.emplace(tensor.name, tensor.kind).second) return absl::StrCat(who, " stands twice");
    const auto bytes = bytes_of(dtype_name(tensor.dtype), tensor.shape);
    if (!bytes.ok()) return absl::StrCat(who, ": ", std::string(bytes.status().message()));
    if (tensor.tied_to.empty()) {
      if (auto why = check_cover(tensor, *bytes, files, cover); !why.empty()) return absl::StrCat(who, " ", why);
      continue;
    }
    const TensorEntry* target = manifest.find(tensor.tied_to, tensor.kind);
    if (target == nullptr || !target->tied_to.empty() || target->shape != tensor.shape ||
        target->dtype != tensor.dtype || !tensor.chunks.empty()) {
      return absl::StrCat(who, " is tied to ", tensor.tied_to, ", which is not a stored tensor of its kind and shape");
    }
  }
  return "";
}

}  // namespace

std::string name_of(TensorKind kind) {
  switch (kind) {
    case TensorKind::kWeight:
      return "weight";
    case TensorKind::kMaster:
      return "master";
    case TensorKind::kExpAvg:
      return "exp_avg";
    case TensorKind::kExpAvgSq:
      return "exp_avg_sq";
    case TensorKind::kFp8Amax:
      return "fp8_amax";
  }
  return "?";
}

std::optional<TensorKind> kind_from(std::string_view name) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(), [&](TensorKind kind) { return name_of(kind) == name; });
  if (found == kKinds.end()) return std::nullopt;
  return *found;
}

const TensorEntry* Manifest::find(std::string_view name, TensorKind kind) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorEntry& tensor) {
    return tensor.kind == kind && tensor.name == name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

absl::StatusOr<std::string> to_text(const Manifest& manifest, Cover cover) {
  if (auto why = check(manifest, cover); !why.empty())
    return absl::InvalidArgumentError(absl::StrCat("manifest: ", why));
  const Json spec = manifest.spec_json.empty() ? Json() : Json::parse(manifest.spec_json, nullptr, false);
  if (spec.is_discarded() || !(spec.is_null() || spec.is_object())) {
    return absl::InvalidArgumentError("manifest: spec is no JSON object");
  }
  Json json = {{"format_version", manifest.format_version},
               {"job", manifest.job},
               {"epoch", manifest.epoch},
               {"step", manifest.step},
               {"consumed_samples", manifest.consumed_samples},
               {"seed", manifest.seed}};
  if (manifest.optimizer.has_value()) {
    json["optimizer"] = {{"applied_steps", manifest.optimizer->applied_steps},
                         {"skipped_steps", manifest.optimizer->skipped_steps},
                         {"good_steps", manifest.optimizer->good_steps},
                         {"loss_scale", manifest.optimizer->loss_scale}};
  }
  if (!manifest.consumed_sources.empty()) json["consumed_sources"] = manifest.consumed_sources;
  if (manifest.blend_start.has_value()) {
    json["blend_start"] = {{"samples", manifest.blend_start->samples}, {"consumed", manifest.blend_start->consumed}};
  }
  for (const auto& [name, extent] : manifest.sources) {
    json["sources"][name] = {
        {"rows", extent.rows}, {"sequence_length", extent.sequence_length}, {"train_tokens", extent.train_tokens}};
  }
  if (manifest.eval_loss.has_value()) json["eval_loss"] = *manifest.eval_loss;
  json["spec"] = spec;
  json["layout"] = {{"tp", manifest.layout.tp},
                    {"pp", manifest.layout.pp},
                    {"dp", manifest.layout.dp},
                    {"zero", manifest.layout.zero}};
  json["files"] = Json::array();
  for (const FileEntry& file : manifest.files) {
    json["files"].push_back(Json{{"name", file.name}, {"bytes", file.bytes}, {"crc32c", crc_text(file.crc32c)}});
  }
  json["tensors"] = Json::array();
  for (const TensorEntry& tensor : manifest.tensors) json["tensors"].push_back(to_json(tensor));
  try {
    std::string text = json.dump(1);
    text.resize(text.size() - 2);  // The closing "\n}" comes with the seal.
    return text + seal(crc32c(text));
  } catch (const Json::exception& error) {  // A name that is not UTF-8.
    return absl::InvalidArgumentError(absl::StrCat("manifest: ", error.what()));
  }
}

absl::StatusOr<Manifest> parse_manifest(std::string_view text, const std::string& path, Cover cover) {
  const auto bad = [&](const std::string& why) {
    return absl::DataLossError(absl::StrCat("manifest ", path, ": ", why));
  };
  const size_t seal_bytes = seal(0).size();
  if (text.size() < seal_bytes) return bad(absl::StrCat(text.size(), " bytes, too short"));
  const std::string_view sealed = text.substr(0, text.size() - seal_bytes);
  const std::string expected = seal(crc32c(sealed));
  if (text.substr(sealed.size()) != expected) return bad("its bytes do not match its manifest_crc32c");
  try {
    const Json json = Json::parse(text);
    const uint64_t version = count_field(json, "format_version");
    if (version > kFormatVersion) {
      return absl::FailedPreconditionError(absl::StrCat("manifest ", path, ": format_version ", version,
                                                        " is newer than the ", kFormatVersion, " that we know"));
    }
    Manifest manifest = manifest_from(json);
    if (auto why = check(manifest, cover); !why.empty()) return bad(why);
    return manifest;
  } catch (const Json::exception& error) {
    return bad(error.what());
  } catch (const MalformedField& error) {
    return bad(error.what());
  }
}

absl::Status merge(const Manifest& fragment, Manifest& whole) {
  std::map<std::pair<std::string_view, TensorKind>, TensorEntry*> known;
  for (TensorEntry& tensor : whole.tensors) known[{tensor.name, tensor.kind}] = &tensor;
  for (const TensorEntry& tensor : fragment.tensors) {
    const auto found = known.find({tensor.name, tensor.kind});
    const auto bad = [&](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat(name_of(tensor.kind), " ", tensor.name, " ", why));
    };
    if (found == known.end()) return bad("is no tensor of the checkpoint");
    TensorEntry& into = *found->second;
    if (into.shape != tensor.shape || into.dtype != tensor.dtype || into.tied_to != tensor.tied_to) {
      return bad("has another dtype, shape or tie than in the checkpoint");
    }
    into.chunks.insert(into.chunks.end(), tensor.chunks.begin(), tensor.chunks.end());
  }
  whole.files.insert(whole.files.end(), fragment.files.begin(), fragment.files.end());
  return absl::OkStatus();
}

}  // namespace telar::checkpoint
