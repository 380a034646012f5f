#include "worker/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/crc32c.h"
#include "common/fault_point.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/run_files.h"
#include "worker/checkpoint/safetensors.h"

namespace telar::checkpoint {
namespace {

using Names = std::vector<std::string>;

constexpr uint64_t kWritePiece = uint64_t{4} << 20;  // Stays in cache between the two CRCs and the write.

// Messages on the board. Rank 0 says that the directory is there, each other rank what it has put there, or why
// nothing, and rank 0 that all is there and how it ended.
constexpr const char* kBegun = "begun";
constexpr const char* kDeciding = "deciding";
constexpr const char* kPublished = "published";
constexpr const char* kFailed = "failed";
std::string written_message(int rank) { return absl::StrFormat("rank-%05d", rank); }
std::string failed_message(int rank) { return absl::StrFormat("rank-%05d.failed", rank); }
bool has(const Names& sorted, const std::string& name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

// For the others to read how it ended. Nothing but tidiness depends on it.
constexpr std::chrono::milliseconds kLeaving = std::chrono::seconds(10);

constexpr const char* kUntold = "telar.dev/untold";
constexpr const char* kFenced = "telar.dev/fenced";
absl::Status marked(const char* mark, absl::Status status) {
  status.SetPayload(mark, absl::Cord("1"));
  return status;
}
absl::Status as_untold(absl::Status status) { return marked(kUntold, std::move(status)); }

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

// A status as the text of a message, and back.
std::string to_message(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), " ", status.message());
}
absl::Status from_message(const std::string& text, const std::string& prefix) {
  const size_t space = std::min(text.find(' '), text.size());
  int code = 0;
  const bool good = absl::SimpleAtoi(text.substr(0, space), &code) && code > 0;
  return absl::Status(good ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal,
                      absl::StrCat(prefix, text.substr(std::min(space + 1, text.size()))));
}

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
  if (part.read != nullptr && part.data.empty()) return absl::OkStatus();
  if (part.read != nullptr) return bad("both data and a call that reads it");
  if (part.data.size() != *bytes) return bad(absl::StrCat(part.data.size(), " bytes of data, its shape has ", *bytes));
  return absl::OkStatus();
}

uint64_t part_bytes(const TensorPart& part) {
  return bytes_of(dtype_name(part.dtype), part.extent).value();  // Checked when it was added.
}

}  // namespace

bool untold(const absl::Status& status) { return status.GetPayload(kUntold).has_value(); }
bool fenced(const absl::Status& status) { return status.GetPayload(kFenced).has_value(); }

CheckpointWriter::CheckpointWriter(FileSystem& files, std::string run_dir, uint64_t step, uint64_t attempt,
                                   uint64_t shard_bytes, Peers peers, Writing writing)
    : files_(files),
      run_dir_(std::move(run_dir)),
      parent_(checkpoints_dir(run_dir_)),
      temp_(absl::StrCat(parent_, "/", temp_name(step, attempt))),
      target_(absl::StrCat(parent_, "/", step_name(step))),
      step_(step),
      attempt_(attempt),
      shard_bytes_(shard_bytes),
      peers_(peers),
      writing_(writing),
      board_(files, absl::StrCat(parent_, "/", board_name(step, attempt)), writing.give_up) {}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::create(FileSystem& files,
                                                                           const std::string& run_dir, uint64_t step,
                                                                           uint64_t attempt, uint64_t shard_bytes,
                                                                           Peers peers, Writing writing) {
  std::unique_ptr<CheckpointWriter> writer(
      new CheckpointWriter(files, run_dir, step, attempt, shard_bytes, peers, writing));
  const auto status = writer->leads() ? writer->begin() : writer->await_begin();
  if (!status.ok()) return status;
  return writer;
}

CheckpointWriter::~CheckpointWriter() {
  if (awaited_) {
    tell(absl::CancelledError(absl::StrCat("checkpoint ", target_, ": given up before its end"))).IgnoreError();
  }
  // By way of the trash, since others may be writing there. What cannot be removed now is swept by the next save.
  if (temp_exists_) discard(files_, temp_, attempt_).IgnoreError();
}

absl::Status CheckpointWriter::begin() {
  const auto make_room = [&] {
    auto status = make_directories(files_, parent_);
    if (status.ok()) status = fence();
    if (status.ok()) status = sweep(files_, run_dir_, attempt_, result_.warnings);
    if (status.ok()) status = files_.make_directory(temp_);
    temp_exists_ = status.ok();
    return status;
  };
  auto status = make_room();
  if (alone()) return status;
  awaited_ = true;
  const auto made = board_.make();  // Even then, so that the others need not wait in vain.
  if (status.ok()) status = made;
  if (status.ok()) status = board_.post(kBegun, "");
  return status.ok() ? status : tell_failure(status);
}

absl::Status CheckpointWriter::await_begin() {
  Names names;
  const auto begun = [](const Names& seen) { return has(seen, kBegun) || has(seen, kFailed); };
  const auto status = board_.wait(begun, 2 * peers_.patience, names);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat("checkpoint ", target_, ": rank 0 has not begun it in ", 2 * seconds(peers_.patience), " s"));
  }
  if (status.ok() && has(names, kFailed)) return verdict();
  awaited_ = status.ok();
  return status.ok() ? status : as_untold(status);
}

absl::Status CheckpointWriter::fence() const {
  const auto refuse = [&](const std::string& path, uint64_t other) {
    return marked(kFenced, absl::FailedPreconditionError(
                               absl::StrCat("attempt ", attempt_, " may not save: ", path, " is of attempt ", other)));
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

void CheckpointWriter::expect(std::vector<TensorEntry> tensors) {
  for (TensorEntry& tensor : tensors) tensor.chunks.clear();
  manifest_.tensors = std::move(tensors);
  closed_ = true;
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
  if (found == tensors.end() && closed_) {
    return absl::InvalidArgumentError(absl::StrCat(label(part), ": is not among the tensors of the checkpoint"));
  }
  if (found == tensors.end()) {
    found = tensors.insert(found, {.name = part.name, .kind = part.kind, .shape = part.shape, .dtype = part.dtype});
  } else if (found->shape != part.shape || found->dtype != part.dtype || !found->tied_to.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(label(part), ": dtype and shape differ from ",
                                                   closed_ ? "what is expected" : "those of an earlier part"));
  }
  if (part_bytes(part) == 0) return absl::OkStatus();  // No elements, no chunk.
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

absl::StatusOr<PublishResult> CheckpointWriter::publish(Manifest info, const RetentionRule& rule) {
  if (std::exchange(published_, true)) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint ", target_, ": published before"));
  }
  manifest_.epoch = attempt_;
  manifest_.step = step_;
  if (!leads()) {
    const auto status = write_and_hand_in();
    return status.ok() ? absl::StatusOr<PublishResult>(result_) : status;
  }
  manifest_.job = std::move(info.job);
  manifest_.consumed_samples = info.consumed_samples;
  manifest_.consumed_sources = std::move(info.consumed_sources);
  manifest_.blend_start = std::move(info.blend_start);
  manifest_.sources = std::move(info.sources);
  manifest_.seed = info.seed;
  manifest_.optimizer = info.optimizer;
  manifest_.eval_loss = info.eval_loss;
  manifest_.spec_json = std::move(info.spec_json);
  manifest_.layout = info.layout;
  const auto status = write_and_commit();
  if (!status.ok()) return alone() ? status : tell_failure(status);
  const auto told = alone() ? absl::OkStatus() : tell(status);
  if (!told.ok()) return as_untold(told);
  if (auto pointed = point_latest(files_, run_dir_, step_, attempt_); !pointed.ok()) {
    result_.warnings.push_back(pointed);
  }
  Retained retained = retain(files_, run_dir_, target_, attempt_, rule);
  result_.removed = std::move(retained.removed);
  for (absl::Status& warning : retained.warnings) result_.warnings.push_back(std::move(warning));
  if (!alone()) close_board();
  return result_;
}

absl::Status CheckpointWriter::write_and_commit() {
  if (auto status = write_shards(); !status.ok()) return status;
  if (auto status = alone() ? absl::OkStatus() : gather(); !status.ok()) return status;
  const auto text = to_text(manifest_);
  if (!text.ok()) return text.status();
  if (auto status = write_file(files_, absl::StrCat(temp_, "/", kManifestName), *text); !status.ok()) return status;
  if (auto status = files_.sync_directory(temp_); !status.ok()) return status;
  result_.bytes = text->size();
  for (const FileEntry& file : manifest_.files) result_.bytes += file.bytes;
  // Now, so that a disk that is full by then cannot keep the others from hearing of the commit.
  if (!alone()) {
    if (auto status = board_.prepare(kPublished, absl::StrCat(result_.bytes)); !status.ok()) return status;
  }
  if (auto status = commit(); !status.ok()) return status;
  result_.path = target_;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::gather() {
  Names names;
  Names missing;
  int failed = 0;
  const auto enough = [&](const Names& seen) {
    missing.clear();
    for (int rank = 1; rank < peers_.count && failed == 0; ++rank) {
      if (has(seen, failed_message(rank))) failed = rank;
      if (!has(seen, written_message(rank))) missing.push_back(absl::StrCat(rank));
    }
    return failed > 0 || missing.empty();
  };
  const auto status = board_.wait(enough, peers_.patience, names);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "checkpoint ", target_, ": ", missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "), " of ",
        peers_.count, " did not write within ", seconds(peers_.patience), " s"));
  }
  if (!status.ok()) return status;
  if (failed > 0) {
    const auto text = board_.read(failed_message(failed));
    return text.ok() ? from_message(*text, absl::StrCat("rank ", failed, ": ")) : text.status();
  }
  for (int rank = 1; rank < peers_.count; ++rank) {
    if (auto taken = take_fragment(rank); !taken.ok()) return taken;
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::take_fragment(int rank) {
  const std::string name = written_message(rank);
  const auto text = board_.read(name);
  if (!text.ok()) return text.status();
  const auto fragment = parse_manifest(*text, absl::StrCat(board_.path(), "/", name), Cover::kFragment);
  if (!fragment.ok()) return fragment.status();
  if (fragment->step != step_ || fragment->epoch != attempt_) {
    return absl::InternalError(absl::StrCat("checkpoint ", target_, ": rank ", rank, " wrote step ", fragment->step,
                                            " of attempt ", fragment->epoch));
  }
  const auto status = merge(*fragment, manifest_);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("checkpoint ", target_, ": rank ", rank, ": ", status.message()));
}

absl::Status CheckpointWriter::write_and_hand_in() {
  auto status = write_shards();
  if (status.ok()) status = files_.sync_directory(temp_);
  std::erase_if(manifest_.tensors,
                [](const TensorEntry& tensor) { return tensor.chunks.empty() && tensor.tied_to.empty(); });
  const auto text = to_text(manifest_, Cover::kFragment);
  if (status.ok()) status = text.status();
  if (status.ok()) status = board_.post(written_message(peers_.rank), *text);
  if (!status.ok()) {
    // Maybe only because rank 0 has given up and taken the directory away: then its reason is the one to tell.
    Names names;
    const auto over = board_.wait([](const Names& seen) { return has(seen, kFailed); }, {}, names);
    if (over.ok()) return verdict();
    return tell_failure(status);
  }
  awaited_ = false;
  return verdict();
}

absl::Status CheckpointWriter::verdict() {
  awaited_ = false;
  Names names;
  const auto over = [](const Names& seen) { return has(seen, kPublished) || has(seen, kFailed); };
  auto status = board_.wait(over, 2 * peers_.patience, names);
  // Whom rank 0 asks may be away for as long as it likes; rank 0 knows when to give up.
  while (absl::IsDeadlineExceeded(status) && has(names, kDeciding)) status = board_.wait(over, peers_.patience, names);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat("checkpoint ", target_, ": rank 0 did not publish it in ", 2 * seconds(peers_.patience), " s"));
  }
  if (!status.ok()) return status;
  const bool failed = has(names, kFailed);
  const auto text = board_.read(failed ? kFailed : kPublished);
  if (!text.ok()) return text.status();
  if (failed) return from_message(*text, absl::StrCat("checkpoint ", target_, " is not published: "));
  result_.path = target_;
  if (!absl::SimpleAtoi(*text, &result_.bytes)) return absl::InternalError(absl::StrCat(board_.path(), ": ", *text));
  board_.remove(written_message(peers_.rank)).IgnoreError();  // Rank 0 waits a little for that and no longer.
  return absl::OkStatus();
}

// What cannot be told is found out by the others' deadlines.
absl::Status CheckpointWriter::tell(const absl::Status& status) {
  awaited_ = false;
  if (status.ok()) return board_.show(kPublished);
  return board_.post(leads() ? kFailed : failed_message(peers_.rank), to_message(status));
}

// On a disk that is full there is no room for the news while the files are there that filled it.
absl::Status CheckpointWriter::tell_failure(absl::Status status) {
  auto told = tell(status);
  if (!told.ok() && temp_exists_ && discard(files_, temp_, attempt_).ok()) {
    temp_exists_ = false;
    told = tell(status);
  }
  return told.ok() ? status : as_untold(std::move(status));
}

void CheckpointWriter::close_board() {
  Names names;
  const auto all_left = [&](const Names& seen) {
    for (int rank = 1; rank < peers_.count; ++rank) {
      if (has(seen, written_message(rank))) return false;
    }
    return true;
  };
  const auto status = board_.wait(all_left, std::min(kLeaving, peers_.patience), names);
  if (status.ok()) remove_with_files(files_, board_.path()).IgnoreError();  // Else the next save sweeps it.
}

absl::Status CheckpointWriter::check_wanted() const {
  if (writing_.give_up == nullptr || !writing_.give_up->load()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("checkpoint ", target_, ": given up"));
}

std::vector<CheckpointWriter::Shard> CheckpointWriter::plan_shards() {
  // Greatest elements first, so that every tensor of a shard is aligned.
  std::vector<size_t> order(parts_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto element = [&](size_t part) { return backend::size_of(parts_[part].dtype); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return element(a) > element(b); });
  uint64_t total = 0;
  for (const TensorPart& part : parts_) total += part_bytes(part);
  const auto threads = static_cast<uint64_t>(std::max(1, writing_.threads));
  const uint64_t most = threads == 1 ? shard_bytes_ : std::min(shard_bytes_, (total + threads - 1) / threads);
  std::vector<Shard> shards;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    uint64_t bytes = 0;
    while (end < order.size() && (end == begin || bytes + part_bytes(parts_[order[end]]) <= most)) {
      bytes += part_bytes(parts_[order[end++]]);
    }
    shards.push_back(plan_shard(shards.size(), std::span(order).subspan(begin, end - begin)));
  }
  return shards;
}

CheckpointWriter::Shard CheckpointWriter::plan_shard(size_t number, std::span<const size_t> parts) {
  Shard shard;
  shard.name = alone() ? shard_name(number) : shard_name(peers_.rank, number);
  shard.parts.assign(parts.begin(), parts.end());
  const std::string rank = alone() ? "" : absl::StrCat(peers_.rank, ".");
  for (const size_t index : parts) {
    const TensorPart& part = parts_[index];
    TensorEntry& tensor = manifest_.tensors[part_tensor_[index]];
    const std::string key = absl::StrCat(name_of(part.kind), "/", part.name, "#", rank, tensor.chunks.size());
    shard.chunks.push_back(tensor.chunks.size());
    tensor.chunks.push_back({.file = shard.name, .key = key, .offset = part.offset, .shape = part.extent});
    shard.tensors.push_back({.name = key, .dtype = dtype_name(part.dtype), .shape = part.extent});
  }
  return shard;
}

absl::Status CheckpointWriter::write_shards() {
  std::vector<Shard> shards = plan_shards();
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<absl::Status> results(shards.size());
  const auto write = [&] {
    for (size_t at = next++; at < shards.size() && !failed; at = next++) {
      results[at] = write_shard(shards[at]);
      if (!results[at].ok()) failed = true;
    }
  };
  std::vector<std::thread> helpers;
  const size_t most = std::min(static_cast<size_t>(std::max(1, writing_.threads)), shards.size());
  try {
    while (helpers.size() + 1 < most) helpers.emplace_back(write);
  } catch (const std::system_error&) {  // No thread to be had: those that there are will do.
  }
  write();
  for (std::thread& helper : helpers) helper.join();
  for (const absl::Status& status : results) {
    if (!status.ok()) return status;
  }
  for (Shard& shard : shards) manifest_.files.push_back(std::move(shard.written));
  return absl::OkStatus();
}

absl::Status CheckpointWriter::write_shard(Shard& shard) {
  auto file =
      SafetensorsWriter::create(files_, absl::StrCat(temp_, "/", shard.name), shard.tensors, {{"format", "pt"}});
  if (!file.ok()) return file.status();
  for (size_t at = 0; at < shard.parts.size(); ++at) {
    const size_t part = shard.parts[at];
    Chunk& chunk = manifest_.tensors[part_tensor_[part]].chunks[shard.chunks[at]];
    if (auto status = write_part(parts_[part], **file, chunk); !status.ok()) return status;
  }
  const auto finished = (*file)->finish();
  if (!finished.ok()) return finished.status();
  shard.written = {shard.name, finished->bytes, finished->crc32c};
  return absl::OkStatus();
}

absl::Status CheckpointWriter::write_part(const TensorPart& part, SafetensorsWriter& shard, Chunk& chunk) {
  const uint64_t bytes = part_bytes(part);
  std::vector<std::byte> buffer(part.read == nullptr ? 0 : std::min(kWritePiece, bytes));
  for (uint64_t at = 0; at < bytes; at += kWritePiece) {
    if (auto status = check_wanted(); !status.ok()) return status;
    const uint64_t size = std::min(kWritePiece, bytes - at);
    std::span<const std::byte> piece;
    if (part.read == nullptr) {
      piece = part.data.subspan(at, size);
    } else {
      const auto out = std::span(buffer).first(size);
      if (auto status = part.read(at, out); !status.ok()) return status;
      piece = out;
    }
    chunk.crc32c = crc32c(piece, chunk.crc32c);
    if (auto status = shard.append(piece); !status.ok()) return status;
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
    const auto pinned = is_pinned(files_, target_);
    if (pinned.ok() && *pinned) {
      if (auto kept = pin(files_, temp_); !kept.ok()) return kept;
    }
  }
  if (auto status = fault_point("save.staged"); !status.ok()) return status;
  if (auto status = decide(); !status.ok()) return status;
  fault_point("save.decided").IgnoreError();
  if (entries.ok()) {
    // Gone: a newer attempt has published it in our stead, and what stands there now is good.
    if (auto mine = files_.list(temp_); !mine.ok()) return mine.status();
    if (auto removed = discard(files_, target_, attempt_); !removed.ok()) return removed;
  }
  if (auto status = files_.rename(temp_, target_); !status.ok()) return status;
  temp_exists_ = false;
  fault_point("save.published").IgnoreError();
  return files_.sync_directory(parent_);
}

absl::Status CheckpointWriter::decide() {
  if (writing_.committer == nullptr) return absl::OkStatus();
  if (writing_.committer->remembers()) {  // Then the directory must be there, too, whatever happens.
    if (auto status = files_.sync_directory(parent_); !status.ok()) return status;
  }
  // They wait on all the same without it, though not for as long.
  if (!alone()) board_.post(kDeciding, "").IgnoreError();
  const auto status = writing_.committer->commit({step_, attempt_});
  // From here on the files are not this writer's to take away: whoever comes next may find that they count.
  if (writing_.committer->remembers() && !refused(status)) temp_exists_ = false;
  if (status.ok()) return status;
  const absl::Status told(status.code(), absl::StrCat("checkpoint ", target_, ": ", status.message()));
  return refused(status) ? marked(kFenced, told) : told;
}

}  // namespace telar::checkpoint
