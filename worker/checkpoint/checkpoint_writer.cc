#include "worker/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/crc32c.h"
#include "worker/checkpoint/run_files.h"
#include "worker/checkpoint/safetensors.h"

namespace telar::checkpoint {
namespace {

constexpr size_t kPiece = size_t{4} << 20;  // Stays in cache between the two CRCs and the write.
constexpr std::string_view kLatestTemp = ".tmp-LATEST";

std::string latest_temp(uint64_t attempt) { return absl::StrCat(std::string(kLatestTemp), "-", attempt); }

std::string label(const TensorPart& part) { return absl::StrCat(name_of(part.kind), " ", part.name); }

absl::Status check(const TensorPart& part) {
  const auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(label(part), ": ", why));
  };
  const auto whole = bytes_of(dtype_name(part.dtype), part.shape);
  const auto bytes = bytes_of(dtype_name(part.dtype), part.extent);
  if (!whole.ok() || !bytes.ok()) return bad("its shape has a negative extent or overflows");
  if (part.offset.size() != part.shape.size() || part.extent.size() != part.shape.size()) {
    return bad(absl::StrCat("a part of ", part.extent.size(), " axes of a shape of ", part.shape.size()));
  }
  if (part.data.size() != *bytes) return bad(absl::StrCat(part.data.size(), " bytes of data, its shape has ", *bytes));
  return absl::OkStatus();
}

}  // namespace

CheckpointWriter::CheckpointWriter(FileSystem& files, std::string run_dir, uint64_t step, uint64_t attempt,
                                   uint64_t shard_bytes)
    : files_(files),
      run_dir_(std::move(run_dir)),
      parent_(checkpoints_dir(run_dir_)),
      temp_(absl::StrCat(parent_, "/", temp_name(step, attempt))),
      target_(absl::StrCat(parent_, "/", step_name(step))),
      step_(step),
      attempt_(attempt),
      shard_bytes_(shard_bytes) {}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::create(FileSystem& files,
                                                                           const std::string& run_dir, uint64_t step,
                                                                           uint64_t attempt, uint64_t shard_bytes) {
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(files, run_dir, step, attempt, shard_bytes));
  if (auto status = make_directories(files, writer->parent_); !status.ok()) return status;
  if (auto status = writer->fence(); !status.ok()) return status;
  if (auto status = writer->sweep(); !status.ok()) return status;
  if (auto status = files.make_directory(writer->temp_); !status.ok()) return status;
  writer->temp_exists_ = true;
  return writer;
}

CheckpointWriter::~CheckpointWriter() {
  // What cannot be removed now is swept by the next save.
  if (temp_exists_) remove_with_files(files_, temp_).IgnoreError();
}

absl::Status CheckpointWriter::sweep() {
  const auto names = files_.list(parent_);
  if (!names.ok()) return names.status();
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) result_.warnings.push_back(status);
  };
  for (const std::string& name : *names) {
    if (is_trash(name)) note(remove_with_files(files_, absl::StrCat(parent_, "/", name)));
  }
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(parent_, "/", name);
    // By way of the trash: were its files taken one by one, an old attempt that is alive could publish what is left.
    if (attempt_of_temp(name)) note(discard(path));
    if (name.starts_with(kLatestTemp)) note(files_.remove_file(path));
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::fence() const {
  const auto refuse = [&](const std::string& path, uint64_t other) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", attempt_, " may not save: ", path, " is of attempt ", other));
  };
  const auto names = files_.list(parent_);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(parent_, "/", name);
    if (const auto other = attempt_of_temp(name); other && *other > attempt_) return refuse(path, *other);
    if (!step_of(name)) continue;
    const auto published = CheckpointReader::open(files_, path);
    if (published.ok() && (*published)->manifest().epoch > attempt_) {
      return refuse(path, (*published)->manifest().epoch);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::add(TensorPart part) {
  if (part.offset.empty() && part.extent.empty()) {
    part.offset.assign(part.shape.size(), 0);
    part.extent = part.shape;
  }
  if (auto status = check(part); !status.ok()) return status;
  auto& tensors = manifest_.tensors;
  auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorEntry& tensor) {
    return tensor.kind == part.kind && tensor.name == part.name;
  });
  if (found == tensors.end()) {
    found = tensors.insert(found, {.name = part.name, .kind = part.kind, .shape = part.shape, .dtype = part.dtype});
  } else if (found->shape != part.shape || found->dtype != part.dtype || !found->tied_to.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(label(part), ": dtype and shape differ from those of an earlier part"));
  }
  if (part.data.empty()) return absl::OkStatus();  // No elements, no chunk.
  part_tensor_.push_back(static_cast<size_t>(found - tensors.begin()));
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status CheckpointWriter::add_tied(const std::string& name, TensorKind kind, const std::string& tied_to) {
  const TensorEntry* target = manifest_.find(tied_to, kind);
  if (target == nullptr || manifest_.find(name, kind) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name_of(kind), " ", name, ": cannot be tied to ", tied_to,
                                                   target ? ": it was added before" : ", which was not added"));
  }
  manifest_.tensors.push_back(
      {.name = name, .kind = kind, .shape = target->shape, .dtype = target->dtype, .tied_to = tied_to});
  return absl::OkStatus();
}

absl::StatusOr<PublishResult> CheckpointWriter::publish(Manifest info, uint32_t keep) {
  if (!temp_exists_) return absl::FailedPreconditionError(absl::StrCat("checkpoint ", target_, ": published before"));
  manifest_.job = std::move(info.job);
  manifest_.epoch = attempt_;
  manifest_.step = step_;
  manifest_.consumed_samples = info.consumed_samples;
  manifest_.seed = info.seed;
  manifest_.optimizer = info.optimizer;
  manifest_.spec_json = std::move(info.spec_json);
  manifest_.layout = info.layout;
  if (auto status = write_shards(); !status.ok()) return status;
  const auto text = to_text(manifest_);
  if (!text.ok()) return text.status();
  if (auto status = write_file(files_, absl::StrCat(temp_, "/", kManifestName), *text); !status.ok()) return status;
  if (auto status = files_.sync_directory(temp_); !status.ok()) return status;
  if (auto status = commit(); !status.ok()) return status;
  result_.path = target_;
  result_.bytes = text->size();
  for (const FileEntry& file : manifest_.files) result_.bytes += file.bytes;
  point_latest();
  if (keep > 0) retain(keep);
  return result_;
}

absl::Status CheckpointWriter::write_shards() {
  // Greatest elements first, so that every tensor of a shard is aligned.
  std::vector<size_t> order(parts_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto element = [&](size_t part) { return backend::size_of(parts_[part].dtype); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return element(a) > element(b); });
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    uint64_t bytes = 0;
    while (end < order.size() && (end == begin || bytes + parts_[order[end]].data.size() <= shard_bytes_)) {
      bytes += parts_[order[end++]].data.size();
    }
    if (auto status = write_shard(std::span(order).subspan(begin, end - begin)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::write_shard(std::span<const size_t> parts) {
  const std::string name = shard_name(manifest_.files.size());
  std::vector<TensorInfo> declared;
  for (const size_t index : parts) {
    const TensorPart& part = parts_[index];
    TensorEntry& tensor = manifest_.tensors[part_tensor_[index]];
    const std::string key = absl::StrCat(name_of(part.kind), "/", part.name, "#", tensor.chunks.size());
    tensor.chunks.push_back({.file = name, .key = key, .offset = part.offset, .shape = part.extent});
    declared.push_back({.name = key, .dtype = dtype_name(part.dtype), .shape = part.extent});
  }
  const std::string path = absl::StrCat(temp_, "/", name);
  auto shard = SafetensorsWriter::create(files_, path, declared, {{"format", "pt"}});
  if (!shard.ok()) return shard.status();
  for (size_t at = 0; at < parts.size(); ++at) {
    auto& chunks = manifest_.tensors[part_tensor_[parts[at]]].chunks;
    const auto chunk =
        std::find_if(chunks.begin(), chunks.end(), [&](const Chunk& one) { return one.key == declared[at].name; });
    if (auto status = write_part(parts_[parts[at]], **shard, *chunk); !status.ok()) return status;
  }
  const auto finished = (*shard)->finish();
  if (!finished.ok()) return finished.status();
  manifest_.files.push_back({name, finished->bytes, finished->crc32c});
  return absl::OkStatus();
}

absl::Status CheckpointWriter::write_part(const TensorPart& part, SafetensorsWriter& shard, Chunk& chunk) {
  for (auto left = part.data; !left.empty();) {
    const auto piece = left.first(std::min(kPiece, left.size()));
    chunk.crc32c = crc32c(piece, chunk.crc32c);
    if (auto status = shard.append(piece); !status.ok()) return status;
    left = left.subspan(piece.size());
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::commit() {
  if (auto status = fence(); !status.ok()) return status;
  const auto entries = files_.list(target_);
  if (!entries.ok() && !absl::IsNotFound(entries.status())) return entries.status();
  if (entries.ok()) {
    const auto standing = CheckpointReader::open(files_, target_);
    const absl::Status status = standing.ok() ? (*standing)->verify() : standing.status();
    if (status.ok()) {
      result_.already_there = true;
      return absl::OkStatus();
    }
    // Only what is certainly damaged makes room for the new one.
    if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
    if (auto removed = discard(target_); !removed.ok()) return removed;
  }
  if (auto status = files_.rename(temp_, target_); !status.ok()) return status;
  temp_exists_ = false;
  return files_.sync_directory(parent_);
}

void CheckpointWriter::point_latest() {
  const std::string temp = absl::StrCat(parent_, "/", latest_temp(attempt_));
  auto status = write_file(files_, temp, absl::StrCat(step_name(step_), "\n"));
  if (status.ok()) status = files_.rename(temp, absl::StrCat(parent_, "/", kLatestName));
  if (status.ok()) status = files_.sync_directory(parent_);
  if (!status.ok()) result_.warnings.push_back(status);
}

void CheckpointWriter::retain(uint32_t keep) {
  const auto published = list_published(files_, run_dir_);
  if (!published.ok()) return result_.warnings.push_back(published.status());
  std::vector<std::string> old;
  uint32_t complete = 0;
  for (const Published& one : *published) {
    const auto reader = CheckpointReader::open(files_, one.path);
    if (!reader.ok()) continue;  // Damaged ones stay for whoever wants to know why.
    if (++complete > keep && one.path != target_) old.push_back(one.path);
  }
  if (old.empty()) return;
  const auto fresh = CheckpointReader::open(files_, target_);
  const absl::Status good = fresh.ok() ? (*fresh)->verify() : fresh.status();
  if (!good.ok()) return result_.warnings.push_back(good);
  for (const std::string& path : old) {
    if (auto status = discard(path); !status.ok()) {
      result_.warnings.push_back(status);
    } else {
      result_.removed.push_back(path);
    }
  }
}

absl::Status CheckpointWriter::discard(const std::string& path) {
  const std::string name = path.substr(path.find_last_of('/') + 1);
  const std::string trash = absl::StrCat(parent_, "/", trash_name(name, attempt_));
  if (auto status = files_.rename(path, trash); !status.ok()) return status;
  // Else a power cut could bring the name back with part of its files.
  if (auto status = files_.sync_directory(parent_); !status.ok()) return status;
  return remove_with_files(files_, trash);
}

}  // namespace telar::checkpoint
