#include "worker/convert/convert.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/crc32c.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/pieces.h"
#include "worker/checkpoint/run_files.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/convert/emit.h"
#include "worker/convert/huggingface.h"
#include "worker/convert/huggingface_config.h"
#include "worker/convert/llmc.h"
#include "worker/tokenizer/kind.h"

namespace telar::convert {
namespace {

using checkpoint::FileSystem;
using checkpoint::TensorInfo;

constexpr uint64_t kTelarShardBytes = uint64_t{4} << 30;
constexpr uint64_t kMostTokenizerBytes = uint64_t{1} << 30;
// What may lie beside a tokenizer.json and belongs to it.
constexpr const char* kCompanions[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",   kGenerationConfigName};

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}
std::string base_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// Tensors of one file, as indices; a file is closed before it would pass `most` bytes.
std::vector<std::vector<size_t>> in_files(const std::vector<StoredTensor>& tensors, size_t element, uint64_t most) {
  std::vector<std::vector<size_t>> files(1);
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t size = static_cast<uint64_t>(tensors[i].elements()) * element;
    if (!files.back().empty() && bytes + size > most) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += size;
  }
  return files;
}

class Conversion {
 public:
  Conversion(FileSystem& files, const OpenedModel& from, std::string to, const ConvertOptions& options)
      : files_(files),
        from_(from),
        to_(std::move(to)),
        temp_(absl::StrCat(parent_of(to_), "/.tmp-", base_of(to_))),
        options_(options),
        converted_{.dtype = options.to == Format::kTelar ? backend::DType::kF32 : options.dtype.value_or(from.dtype)},
        emitter_(*from.weights, converted_.dtype) {}

  absl::StatusOr<Converted> run() {
    if (auto status = check_names(); !status.ok()) return status;
    if (auto status = checkpoint::make_directories(files_, parent_of(to_)); !status.ok()) return status;
    auto status = options_.to == Format::kLlmc ? write_llmc() : write_directory();
    if (status.ok()) status = files_.rename(temp_, to_);
    if (status.ok()) status = files_.sync_directory(parent_of(to_));
    if (status.ok()) return converted_;
    if (begun_ && options_.to == Format::kLlmc) files_.remove_file(temp_).IgnoreError();
    if (begun_ && options_.to != Format::kLlmc) checkpoint::remove_with_files(files_, temp_).IgnoreError();
    return status;
  }

 private:
  bool exists(const std::string& path) const { return files_.list(path).ok() || files_.open(path).ok(); }

  absl::Status check_names() const {
    if (base_of(to_).empty()) return absl::InvalidArgumentError(absl::StrCat("'", to_, "' names no file or directory"));
    if (options_.to == Format::kTelar && options_.dtype.value_or(backend::DType::kF32) != backend::DType::kF32) {
      return absl::InvalidArgumentError("a checkpoint of ours holds f32 only");
    }
    if (options_.to == Format::kTelar && checkpoint::step_of(base_of(to_))) {
      return absl::InvalidArgumentError(absl::StrCat(
          to_, ": names like step-N are those of a run's own checkpoints; these are weights to start from"));
    }
    if (exists(to_)) return absl::AlreadyExistsError(absl::StrCat(to_, " is there already"));
    if (!exists(temp_)) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat(temp_, " is there: another conversion writes it, or one was killed and it can be removed"));
  }

  absl::Status write_directory() {
    if (auto status = files_.make_directory(temp_); !status.ok()) return status;
    begun_ = true;
    auto status = options_.to == Format::kTelar ? write_telar() : write_huggingface();
    return status.ok() ? files_.sync_directory(temp_) : status;
  }

  void count(const std::vector<StoredTensor>& tensors) {
    for (const StoredTensor& tensor : tensors) {
      converted_.bytes += static_cast<uint64_t>(tensor.elements()) * backend::size_of(converted_.dtype);
    }
  }
  absl::Status advance(uint64_t bytes) {
    done_ += bytes;
    return options_.progress == nullptr ? absl::OkStatus() : options_.progress(done_, converted_.bytes);
  }

  absl::Status write_llmc() {
    const auto header = llmc_header(from_.model, converted_.dtype);
    if (!header.ok()) return header.status();
    const auto tensors = llmc_tensors(from_.model, header->values[LlmcHeader::kPaddedVocabAt]);
    count(tensors);
    converted_.files = 1;
    auto file = files_.create(temp_);
    if (!file.ok()) return file.status();
    begun_ = true;
    auto status = (*file)->append(std::as_bytes(std::span(header->values)));
    const auto sink = [&](std::span<const std::byte> bytes) {
      const auto written = (*file)->append(bytes);
      return written.ok() ? advance(bytes.size()) : written;
    };
    for (size_t i = 0; i < tensors.size() && status.ok(); ++i) {
      status = emitter_.emit(tensors[i], sink);
    }
    if (status.ok()) status = (*file)->sync();
    return status.ok() ? (*file)->close() : status;
  }

  // One file with those of `tensors` that are `wanted`; the CRC of each goes to `crcs`.
  absl::StatusOr<checkpoint::FileEntry> write_file(const std::string& name, const std::vector<StoredTensor>& tensors,
                                                   const std::vector<size_t>& wanted, std::vector<uint32_t>* crcs) {
    std::vector<TensorInfo> infos;
    for (const size_t i : wanted) {
      infos.push_back({tensors[i].name, checkpoint::dtype_name(converted_.dtype), tensors[i].shape});
    }
    auto writer = checkpoint::SafetensorsWriter::create(files_, absl::StrCat(temp_, "/", name), std::move(infos),
                                                        {{"format", "pt"}});
    if (!writer.ok()) return writer.status();
    ++converted_.files;
    for (const size_t i : wanted) {
      uint32_t crc = 0;
      const auto sink = [&](std::span<const std::byte> bytes) {
        if (crcs != nullptr) crc = crc32c(bytes, crc);
        const auto written = (*writer)->append(bytes);
        return written.ok() ? advance(bytes.size()) : written;
      };
      if (auto status = emitter_.emit(tensors[i], sink); !status.ok()) return status;
      if (crcs != nullptr) (*crcs)[i] = crc;
    }
    const auto finished = (*writer)->finish();
    if (!finished.ok()) return finished.status();
    return checkpoint::FileEntry{name, finished->bytes, finished->crc32c};
  }

  absl::Status write_text(const std::string& name, const std::string& text) {
    return checkpoint::write_file(files_, absl::StrCat(temp_, "/", name), text);
  }

  absl::Status write_huggingface() {
    const auto tensors = huggingface_tensors(from_.model);
    count(tensors);
    const auto parts = in_files(tensors, backend::size_of(converted_.dtype), options_.shard_bytes);
    nlohmann::json map = nlohmann::json::object();
    for (size_t part = 0; part < parts.size(); ++part) {
      const std::string name = parts.size() == 1
                                   ? std::string(kWeightsName)
                                   : absl::StrFormat("model-%05d-of-%05d.safetensors", part + 1, parts.size());
      for (const size_t i : parts[part]) map[tensors[i].name] = name;
      if (const auto file = write_file(name, tensors, parts[part], nullptr); !file.ok()) return file.status();
    }
    if (parts.size() > 1) {
      const nlohmann::json index = {{"metadata", {{"total_size", converted_.bytes}}}, {"weight_map", map}};
      if (auto status = write_text(kIndexName, index.dump(2) + "\n"); !status.ok()) return status;
    }
    if (auto status = copy_tokenizer(); !status.ok()) return status;
    const TokenIds ids = token_ids();
    if (auto status = write_text(kConfigName, config_text(from_.model, converted_.dtype, ids)); !status.ok()) {
      return status;
    }
    if (exists(absl::StrCat(temp_, "/", kGenerationConfigName))) return absl::OkStatus();  // Came with the tokenizer.
    return write_text(kGenerationConfigName, generation_config_text(ids));
  }

  v1::TokenizerSpec tokenizer() const {
    if (options_.tokenizer.empty()) return from_.tokenizer;
    v1::TokenizerSpec given;
    given.set_path(options_.tokenizer);
    given.set_kind(tokenizer::kind_of(options_.tokenizer));
    return given;
  }

  // The model's own, unless it is to have another tokenizer.
  TokenIds token_ids() {
    if (options_.tokenizer.empty() && from_.ids) return *from_.ids;
    const v1::TokenizerSpec spec = tokenizer();
    if (!has_tokenizer_ && spec.kind() != v1::TokenizerSpec::BYTE) return {};
    auto ids = token_ids_of(spec);
    if (ids.ok()) return *std::move(ids);
    converted_.notes.push_back(absl::StrCat("no bos_token_id and eos_token_id: ", std::string(ids.status().message())));
    return {};
  }

  // A given one must be there; one that the model tells of is worth a note when it is not, as it may be on another
  // host. Which libraries read a kind: docs/formats/foreign_weights.md.
  absl::Status copy_tokenizer() {
    const v1::TokenizerSpec spec = tokenizer();
    const std::string& path = spec.path();
    if (path.empty()) {
      converted_.notes.emplace_back("no tokenizer: none is given, and none is known");
      return absl::OkStatus();
    }
    const bool json = spec.kind() == v1::TokenizerSpec::HUGGING_FACE;
    const auto text = checkpoint::read_file(files_, path, kMostTokenizerBytes);
    const bool good = text.ok() && (!json || text->starts_with("{"));
    if (!good && options_.tokenizer.empty()) {
      converted_.notes.push_back(
          absl::StrCat("no tokenizer: ", path, text.ok() ? " is no tokenizer.json" : " cannot be read"));
      return absl::OkStatus();
    }
    if (!text.ok()) return text.status();
    if (!good) return absl::InvalidArgumentError(absl::StrCat(path, ": no tokenizer.json: it does not begin with {"));
    has_tokenizer_ = true;
    if (auto status = write_text(json ? "tokenizer.json" : "tokenizer.model", *text); !status.ok()) return status;
    for (const char* name : kCompanions) {
      const auto companion =
          checkpoint::read_file(files_, absl::StrCat(parent_of(path), "/", name), kMostTokenizerBytes);
      if (absl::IsNotFound(companion.status())) continue;
      if (!companion.ok()) return companion.status();
      if (auto status = write_text(name, *companion); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Masters and nothing else: weights to start a run from.
  absl::Status write_telar() {
    checkpoint::Manifest manifest;
    std::vector<StoredTensor> chunks;
    std::vector<std::pair<size_t, size_t>> owner;  // By chunk: tensor and chunk of the manifest.
    for (const StoredTensor& tensor : logical_tensors(from_.model)) add_chunks(tensor, manifest, chunks, owner);
    count(chunks);
    std::vector<uint32_t> crcs(chunks.size());
    const auto parts = in_files(chunks, sizeof(float), kTelarShardBytes);
    for (size_t part = 0; part < parts.size(); ++part) {
      const std::string name = checkpoint::shard_name(part);
      const auto file = write_file(name, chunks, parts[part], &crcs);
      if (!file.ok()) return file.status();
      manifest.files.push_back(*file);
      for (const size_t i : parts[part]) {
        checkpoint::Chunk& chunk = manifest.tensors[owner[i].first].chunks[owner[i].second];
        chunk.file = name;
        chunk.crc32c = crcs[i];
      }
    }
    const auto spec = spec_text();
    if (!spec.ok()) return spec.status();
    manifest.spec_json = *spec;
    const auto text = checkpoint::to_text(manifest);
    return text.ok() ? write_text(checkpoint::kManifestName, *text) : text.status();
  }

  static void add_chunks(const StoredTensor& tensor, checkpoint::Manifest& manifest, std::vector<StoredTensor>& chunks,
                         std::vector<std::pair<size_t, size_t>>& owner) {
    checkpoint::TensorEntry entry{.name = tensor.name, .kind = checkpoint::TensorKind::kMaster, .shape = tensor.shape};
    const int64_t row_bytes = tensor.columns() * static_cast<int64_t>(sizeof(float));
    const int64_t rows = std::max<int64_t>(1, checkpoint::kChunkBytes / row_bytes);
    for (int64_t row = 0; row < tensor.shape[0]; row += rows) {
      StoredTensor chunk = tensor;
      chunk.name = absl::StrCat("master/", tensor.name, "#", entry.chunks.size());
      chunk.shape[0] = std::min(rows, tensor.shape[0] - row);
      chunk.parts[0].first = -row;
      std::vector<int64_t> offset(chunk.shape.size(), 0);
      offset[0] = row;
      owner.emplace_back(manifest.tensors.size(), entry.chunks.size());
      entry.chunks.push_back({.key = chunk.name, .offset = std::move(offset), .shape = chunk.shape});
      chunks.push_back(std::move(chunk));
    }
    manifest.tensors.push_back(std::move(entry));
  }

  // What an export of the checkpoint asks for: the model, what its weights were stored as, its tokenizer.
  absl::StatusOr<std::string> spec_text() const {
    v1::JobSpec spec;
    *spec.mutable_model() = from_.model;
    spec.mutable_precision()->set_compute(from_.dtype == backend::DType::kBF16  ? v1::BF16
                                          : from_.dtype == backend::DType::kF16 ? v1::FP16
                                                                                : v1::FP32);
    if (const v1::TokenizerSpec known = tokenizer(); !known.path().empty()) *spec.mutable_tokenizer() = known;
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    std::string text;
    const auto printed = google::protobuf::util::MessageToJsonString(spec, &text, options);
    if (!printed.ok()) return absl::InternalError(absl::StrCat("spec as JSON: ", printed.message().ToString()));
    return text;
  }

  FileSystem& files_;
  const OpenedModel& from_;
  const std::string to_, temp_;
  const ConvertOptions& options_;
  Converted converted_;
  Emitter emitter_;
  bool begun_ = false;          // `temp_` is ours.
  bool has_tokenizer_ = false;  // Its file could be read.
  uint64_t done_ = 0;
};

}  // namespace

absl::StatusOr<Converted> convert(FileSystem& files, const OpenedModel& from, const std::string& to,
                                  const ConvertOptions& options) {
  // A directory may be named with a slash behind it.
  return Conversion(files, from, to.size() > 1 && to.ends_with('/') ? to.substr(0, to.size() - 1) : to, options).run();
}

}  // namespace telar::convert
