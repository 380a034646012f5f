#include "worker/convert/huggingface.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/convert/huggingface_config.h"
#include "worker/convert/values.h"

namespace telar::convert {
namespace {

using checkpoint::FileSystem;
using checkpoint::SafetensorsFile;

constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;
constexpr uint64_t kMostIndexBytes = uint64_t{256} << 20;
constexpr size_t kMostProblems = 8;
constexpr size_t kPieceBytes = size_t{4} << 20;

constexpr std::string_view kHead = "lm_head.weight";

// What is wrong, the first few of it.
class Problems {
 public:
  void add(const std::string& text) {
    if (++count_ <= kMostProblems) texts_.push_back(text);
  }
  bool none() const { return count_ == 0; }
  std::string text() const {
    const std::string more = count_ > kMostProblems ? absl::StrCat("; and ", count_ - kMostProblems, " more") : "";
    return absl::StrCat(absl::StrJoin(texts_, "; "), more);
  }

 private:
  std::vector<std::string> texts_;
  size_t count_ = 0;
};

// A tensor of some file of the directory.
struct Found {
  size_t file;
  const checkpoint::TensorInfo* info;
  uint64_t offset;  // In the file.
};

// Buffers of modules: causal masks of GPT-2, rotary frequencies.
bool is_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with("rotary_emb.inv_freq");
}

std::string shape_text(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

class Opening {
 public:
  Opening(FileSystem& files, const std::string& directory) : files_(files), directory_(directory) {}

  absl::StatusOr<std::unique_ptr<ForeignModel>> run() {
    const std::string path = in_directory(kConfigName);
    const auto text = checkpoint::read_file(files_, path, kMostConfigBytes);
    if (!text.ok()) return text.status();
    auto model = parse_config(*text, path);
    if (!model.ok()) return model.status();
    for (const auto stage : {&Opening::open_files, &Opening::list_tensors}) {
      if (auto status = (this->*stage)(); !status.ok()) return status;
    }
    std::vector<StoredTensor> tensors = huggingface_tensors(*model);
    std::vector<Place> places;
    if (auto status = match(*model, tensors, places); !status.ok()) return status;
    return std::make_unique<ForeignModel>("Hugging Face model", directory_, *std::move(model), std::move(raw_),
                                          std::move(tensors), std::move(places));
  }

 private:
  std::string in_directory(const std::string& name) const { return absl::StrCat(directory_, "/", name); }
  absl::Status bad(const std::string& why) const {
    return absl::FailedPreconditionError(absl::StrCat("Hugging Face model ", directory_, ": ", why));
  }

  // One file is preferred to an index, as transformers does.
  absl::Status open_files() {
    const auto names = files_.list(directory_);
    if (!names.ok()) return names.status();
    const auto there = [&](const char* name) { return std::find(names->begin(), names->end(), name) != names->end(); };
    if (there(kWeightsName)) return open_file(kWeightsName);
    if (there(kIndexName)) return open_index();
    if (there("pytorch_model.bin") || there("pytorch_model.bin.index.json")) {
      return bad("has its weights in pytorch_model.bin, which is Python's; save it as safetensors");
    }
    return absl::NotFoundError(
        absl::StrCat("Hugging Face model ", directory_, ": has neither ", kWeightsName, " nor ", kIndexName));
  }

  absl::Status open_file(const std::string& name) {
    const std::string path = in_directory(name);
    auto opened = SafetensorsFile::open(files_, path);
    if (!opened.ok()) return opened.status();
    auto raw = files_.open(path);
    if (!raw.ok()) return raw.status();
    headers_.push_back(*std::move(opened));
    raw_.push_back(*std::move(raw));
    return absl::OkStatus();
  }

  absl::Status open_index() {
    const std::string path = in_directory(kIndexName);
    const auto text = checkpoint::read_file(files_, path, kMostIndexBytes);
    if (!text.ok()) return text.status();
    const auto json = nlohmann::json::parse(*text, nullptr, false);
    const auto damaged = [&](const std::string& why) { return absl::DataLossError(absl::StrCat(path, ": ", why)); };
    if (!json.is_object() || !json.contains("weight_map") || !json.at("weight_map").is_object()) {
      return damaged("no JSON object with a weight_map");
    }
    std::set<std::string> names;
    for (const auto& [tensor, file] : json.at("weight_map").items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) {
        return damaged(
            absl::StrCat("weight_map says ", file.dump(), " for ", tensor, ", not the name of a file beside it"));
      }
      names.insert(name);
      indexed_[tensor] = name;
    }
    if (names.empty()) return damaged("its weight_map is empty");
    has_index_ = true;
    for (const std::string& name : names) {
      if (auto status = open_file(name); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // By the name without the base model's prefix, which files may lack.
  absl::Status list_tensors() {
    Problems problems;
    for (size_t file = 0; file < headers_.size(); ++file) {
      for (const checkpoint::TensorInfo& info : headers_[file]->tensors()) {
        if (has_index_) check_indexed(info.name, *headers_[file], problems);
        if (is_buffer(info.name)) continue;
        const Found found{file, &info, headers_[file]->data_offset() + info.begin};
        const auto [other, is_new] = found_.emplace(without_prefix(info.name), found);
        if (!is_new) {
          problems.add(absl::StrCat(info.name, " is in ", headers_[file]->path(), " and, as ", other->second.info->name,
                                    ", in ", headers_[other->second.file]->path()));
        }
      }
    }
    for (const auto& [tensor, file] : indexed_) {
      problems.add(absl::StrCat(tensor, " is not in ", file, ", where ", kIndexName, " says it is"));
    }
    return problems.none() ? absl::OkStatus() : bad(problems.text());
  }
  // Strikes a tensor off the index.
  void check_indexed(const std::string& name, const SafetensorsFile& file, Problems& problems) {
    const auto entry = indexed_.find(name);
    if (entry != indexed_.end() && in_directory(entry->second) == file.path()) {
      indexed_.erase(entry);
    } else {
      problems.add(absl::StrCat(name, " of ", file.path(), " is not in ", kIndexName));
    }
  }

  static std::string without_prefix(const std::string& name) {
    for (const std::string_view prefix : {"transformer.", "model."}) {
      if (name.starts_with(prefix)) return name.substr(prefix.size());
    }
    return name;
  }

  absl::Status match(const v1::ModelSpec& model, const std::vector<StoredTensor>& tensors, std::vector<Place>& places) {
    Problems problems;
    for (const StoredTensor& tensor : tensors) {
      const auto found = found_.find(without_prefix(tensor.name));
      places.emplace_back();
      if (found == found_.end()) {
        problems.add(absl::StrCat(tensor.name, " ", shape_text(tensor.shape), " is missing",
                                  tensor.name == kHead ? "; config.json does not tie it to the embeddings" : ""));
        continue;
      }
      places.back() = check_tensor(found->second, tensor.name, tensor.shape, problems);
      found_.erase(found);
    }
    const auto head = found_.find(std::string(kHead));
    const bool stored_though_tied = model.tied_head() && head != found_.end();
    Place head_place;
    if (stored_though_tied) {
      head_place = check_tensor(head->second, head->first, tensors[0].shape, problems);
      found_.erase(head);
    }
    for (const auto& [name, found] : found_) {
      problems.add(absl::StrCat(found.info->name, " of ", headers_[found.file]->path(), " is no tensor of the model"));
    }
    if (!problems.none()) return bad(problems.text());
    return stored_though_tied ? check_tie(places[0], head_place, tensors[0].elements()) : absl::OkStatus();
  }

  Place check_tensor(const Found& found, const std::string& name, const std::vector<int64_t>& shape,
                     Problems& problems) {
    const auto dtype = weight_dtype(found.info->dtype);
    const std::string who = absl::StrCat(name, " of ", headers_[found.file]->path());
    if (!dtype) problems.add(absl::StrCat(who, " is ", found.info->dtype, ", want F32, BF16 or F16"));
    if (found.info->shape != shape) {
      problems.add(
          absl::StrCat(who, " is ", shape_text(found.info->shape), ", config.json makes it ", shape_text(shape)));
    }
    return {found.file, found.offset, dtype.value_or(backend::DType::kF32)};
  }

  // transformers would take the embeddings for both, or, in newer versions, neither: better ask whoever made it.
  absl::Status check_tie(const Place& embedding, const Place& head, int64_t elements) const {
    std::vector<std::byte> bytes(kPieceBytes);
    std::vector<float> a(kPieceBytes / sizeof(float)), b(a.size());
    const auto read = [&](const Place& place, int64_t first, std::span<float> values) {
      const size_t element = backend::size_of(place.dtype);
      const auto part = std::span(bytes).first(values.size() * element);
      auto status = raw_[place.file]->read(place.offset + static_cast<uint64_t>(first) * element, part);
      widen(part, place.dtype, values);
      return status;
    };
    for (int64_t first = 0; first < elements; first += static_cast<int64_t>(a.size())) {
      const auto count = static_cast<size_t>(std::min(elements - first, static_cast<int64_t>(a.size())));
      const auto left = std::span(a).first(count), right = std::span(b).first(count);
      if (auto status = read(embedding, first, left); !status.ok()) return status;
      if (auto status = read(head, first, right); !status.ok()) return status;
      if (std::equal(left.begin(), left.end(), right.begin())) continue;
      return bad(
          absl::StrCat(std::string(kHead), " is stored and differs from the embeddings, to which config.json ties it"));
    }
    return absl::OkStatus();
  }

  FileSystem& files_;
  const std::string& directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> headers_;
  std::vector<std::unique_ptr<checkpoint::ReadableFile>> raw_;  // The same files.
  bool has_index_ = false;
  std::map<std::string, std::string> indexed_;  // File by tensor; what is found is struck off.
  std::map<std::string, Found> found_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ForeignModel>> open_huggingface(FileSystem& files, const std::string& directory) {
  return Opening(files, directory).run();
}

}  // namespace telar::convert
