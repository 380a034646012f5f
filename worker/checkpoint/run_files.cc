#include "worker/checkpoint/run_files.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace telar::checkpoint {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemp = ".tmp-step-";
constexpr std::string_view kBoard = ".board-step-";
constexpr std::string_view kTrash = ".trash-";
constexpr uint64_t kMostLatestBytes = 1 << 10;

std::optional<uint64_t> digits(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uint64_t> attempt_behind(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const size_t dash = name.find('-', prefix.size());
  return dash == std::string_view::npos ? std::nullopt : digits(name.substr(dash + 1));
}

// Pinned: somebody did that while it was on its way out, and then the process that would have put it back died.
absl::Status empty_trash(FileSystem& files, const std::string& parent, const std::string& trash) {
  const std::string path = absl::StrCat(parent, "/", trash);
  const std::string name = trash.substr(kTrash.size(), trash.find_last_of('-') - kTrash.size());
  const auto pinned = is_pinned(files, path);
  if (!pinned.ok()) return absl::IsNotFound(pinned.status()) ? absl::OkStatus() : pinned.status();
  if (!*pinned || !step_of(name)) return remove_with_files(files, path);
  const auto standing = files.list(absl::StrCat(parent, "/", name));
  if (!absl::IsNotFound(standing.status())) return remove_with_files(files, path);
  const absl::Status status = files.rename(path, absl::StrCat(parent, "/", name));
  return status.ok() ? files.sync_directory(parent) : status;
}

}  // namespace

std::string checkpoints_dir(const std::string& run_dir) { return run_dir + "/ckpt"; }
std::string step_name(uint64_t step) { return absl::StrFormat("step-%08d", step); }
std::string temp_name(uint64_t step, uint64_t attempt) { return absl::StrFormat(".tmp-step-%08d-%d", step, attempt); }
std::string trash_name(const std::string& name, uint64_t attempt) {
  return absl::StrFormat(".trash-%s-%d", name, attempt);
}
std::string board_name(uint64_t step, uint64_t attempt) {
  return absl::StrFormat(".board-step-%08d-%d", step, attempt);
}
std::string shard_name(size_t index) { return absl::StrFormat("shard-%05d.safetensors", index); }
std::string shard_name(int rank, size_t index) { return absl::StrFormat("shard-r%05d-%05d.safetensors", rank, index); }

std::optional<uint64_t> step_of(std::string_view name) {
  return name.starts_with(kStep) ? digits(name.substr(kStep.size())) : std::nullopt;
}

std::optional<uint64_t> attempt_of_temp(std::string_view name) { return attempt_behind(kTemp, name); }
std::optional<uint64_t> attempt_of_board(std::string_view name) { return attempt_behind(kBoard, name); }

bool is_trash(std::string_view name) { return name.starts_with(kTrash); }

absl::StatusOr<bool> is_pinned(FileSystem& files, const std::string& path) {
  const auto names = files.list(path);
  if (!names.ok()) return names.status();
  return std::find(names->begin(), names->end(), kPinName) != names->end();
}

std::string parent_directory(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

absl::StatusOr<std::string> move_to_trash(FileSystem& files, const std::string& path, uint64_t attempt) {
  const std::string parent = parent_directory(path);
  const std::string trash = absl::StrCat(parent, "/", trash_name(path.substr(parent.size() + 1), attempt));
  if (auto status = files.rename(path, trash); !status.ok()) return status;
  // Else a power cut could bring the name back with part of its files.
  if (auto status = files.sync_directory(parent); !status.ok()) return status;
  return trash;
}

absl::Status discard(FileSystem& files, const std::string& path, uint64_t attempt) {
  const auto trash = move_to_trash(files, path, attempt);
  return trash.ok() ? remove_with_files(files, *trash) : trash.status();
}

absl::Status sweep(FileSystem& files, const std::string& run_dir, uint64_t attempt,
                   std::vector<absl::Status>& trouble) {
  const std::string parent = checkpoints_dir(run_dir);
  const auto names = files.list(parent);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) trouble.push_back(status);
  };
  for (const std::string& name : *names) {
    if (is_trash(name)) note(empty_trash(files, parent, name));
  }
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(parent, "/", name);
    const auto temp = attempt_of_temp(name), board = attempt_of_board(name);
    // By way of the trash: were its files taken one by one, an old attempt that is alive could publish what is left.
    if ((temp && *temp <= attempt) || (board && *board <= attempt)) note(discard(files, path, attempt));
    if (name.starts_with(kLatestTemp)) note(files.remove_file(path));
  }
  return absl::OkStatus();
}

absl::Status point_latest(FileSystem& files, const std::string& run_dir, uint64_t step, uint64_t attempt) {
  const std::string parent = checkpoints_dir(run_dir);
  const std::string temp = absl::StrCat(parent, "/", std::string(kLatestTemp), "-", attempt);
  const auto status =
      publish_file(files, temp, absl::StrCat(parent, "/", kLatestName), absl::StrCat(step_name(step), "\n"));
  return status.ok() ? files.sync_directory(parent) : status;
}

absl::Status correct_latest(FileSystem& files, const std::string& run_dir) {
  const std::string path = absl::StrCat(checkpoints_dir(run_dir), "/", kLatestName);
  const auto named = read_file(files, path, kMostLatestBytes);
  if (absl::IsNotFound(named.status())) return absl::OkStatus();
  if (!named.ok()) return named.status();
  const auto published = list_published(files, run_dir);
  if (!published.ok()) return published.status();
  const auto step = step_of(named->substr(0, named->find('\n')));
  const auto is_named = [&](const Published& one) { return one.step == step; };
  if (std::any_of(published->begin(), published->end(), is_named)) return absl::OkStatus();
  if (!published->empty()) return point_latest(files, run_dir, published->front().step, 0);
  const absl::Status status = files.remove_file(path);
  return status.ok() ? files.sync_directory(checkpoints_dir(run_dir)) : status;
}

absl::StatusOr<std::vector<Published>> list_published(FileSystem& files, const std::string& run_dir) {
  const std::string parent = checkpoints_dir(run_dir);
  const auto names = files.list(parent);
  std::vector<Published> published;
  if (absl::IsNotFound(names.status())) return published;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (const auto step = step_of(name)) published.push_back({*step, parent + "/" + name});
  }
  std::sort(published.begin(), published.end(), [](const Published& a, const Published& b) { return a.step > b.step; });
  return published;
}

}  // namespace telar::checkpoint
