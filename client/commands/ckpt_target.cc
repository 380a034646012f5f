#include <sys/stat.h>

#include <filesystem>
#include <ostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/run_files.h"

namespace telar::client {
namespace {

namespace fs = std::filesystem;
using checkpoint::FileSystem;

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Absolute, and without slashes at its end.
std::string clean(const std::string& path) {
  std::string full = fs::absolute(path).lexically_normal().string();
  while (full.size() > 1 && full.back() == '/') full.pop_back();
  return full;
}

absl::StatusOr<CheckpointTarget> target_at(const std::string& path) {
  const fs::path full = clean(path);
  const bool below_ckpt = full.parent_path().filename() == "ckpt";
  if (is_there(full / checkpoint::kManifestName) || checkpoint::step_of(full.filename().string())) {
    return CheckpointTarget{below_ckpt ? full.parent_path().parent_path().string() : "", full.string()};
  }
  if (is_folder(full / "ckpt")) return CheckpointTarget{full.string(), ""};
  if (full.filename() == "ckpt") return CheckpointTarget{full.parent_path().string(), ""};
  return absl::InvalidArgumentError(
      absl::StrCat(full.string(), ": neither a run directory, nor its ckpt, nor a checkpoint"));
}

absl::StatusOr<CheckpointTarget> target_of_job(Context& context, const std::string& name) {
  const auto job = resolve_job(context, name);
  if (!job.ok()) return job.status();
  if (job->run_dir().empty()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", id_of(job->name()), " has no run directory yet"));
  }
  if (!is_folder(job->run_dir())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id_of(job->name()), " has its checkpoints in ", job->run_dir(),
                     "/ckpt, which is not there on this machine; telar ckpt reads files: run it where they are"));
  }
  return CheckpointTarget{clean(job->run_dir()), ""};
}

absl::StatusOr<CheckpointTarget> run_target(Context& context, const std::string& argument) {
  if (is_folder(argument)) return target_at(argument);
  if (argument.empty() || argument.starts_with(".") || argument.starts_with("/") || is_there(argument)) {
    return absl::NotFoundError(absl::StrCat("'", argument, "': no such directory"));
  }
  auto found = target_of_job(context, argument);
  const bool path_like = argument.find('/') != std::string::npos && !argument.starts_with("projects/");
  if (absl::IsNotFound(found.status()) && path_like) {
    return absl::NotFoundError(absl::StrCat("'", argument, "': no such directory and no such job"));
  }
  return found;
}

// The newest whose manifest and files are in order; its tensors are not read.
absl::StatusOr<std::string> newest(const std::string& run_dir) {
  auto latest = checkpoint::find_latest(FileSystem::posix(), run_dir, checkpoint::Depth::kManifest);
  if (!latest.ok()) return latest.status();
  if (latest->checkpoint != nullptr) return latest->checkpoint->path();
  return absl::NotFoundError(absl::StrCat(run_dir, "/ckpt: no checkpoint that is good"));
}

absl::StatusOr<std::string> pick(const std::string& run_dir, const std::string& which) {
  if (which == "latest") return newest(run_dir);
  uint64_t step = 0;
  if (!absl::SimpleAtoi(which, &step)) {
    return absl::InvalidArgumentError(absl::StrCat("@", which, ": want @ and a step, or @latest"));
  }
  const auto published = checkpoint::list_published(FileSystem::posix(), run_dir);
  if (!published.ok()) return published.status();
  for (const auto& one : *published) {
    if (one.step == step) return one.path;
  }
  return absl::NotFoundError(absl::StrCat(run_dir, "/ckpt: no checkpoint of step ", step));
}

}  // namespace

absl::StatusOr<CheckpointTarget> find_target(Context& context, const std::string& argument) {
  const size_t at = argument.find_last_of('@');
  if (at == std::string::npos || is_there(argument)) return run_target(context, argument);
  auto target = run_target(context, argument.substr(0, at));
  if (!target.ok()) return target;
  if (!target->checkpoint.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(argument, ": ", target->checkpoint, " is a checkpoint already"));
  }
  auto picked = pick(target->run_dir, argument.substr(at + 1));
  if (!picked.ok()) return picked.status();
  target->checkpoint = *std::move(picked);
  return target;
}

absl::StatusOr<std::string> find_checkpoint(Context& context, const std::string& argument, RunMeans run) {
  const auto target = find_target(context, argument);
  if (!target.ok()) return target.status();
  if (!target->checkpoint.empty()) return target->checkpoint;
  if (run == RunMeans::kNewest) return newest(target->run_dir);
  return absl::InvalidArgumentError(
      absl::StrCat("'", argument, "' names a run; add @STEP, as telar ckpt ls shows it, or @latest"));
}

CheckpointLine line_of(const checkpoint::CheckpointReader& reader) {
  const checkpoint::Manifest& manifest = reader.manifest();
  CheckpointLine line = {.path = reader.path(), .step = manifest.step, .state = "good"};
  line.eval_loss = manifest.eval_loss;
  const checkpoint::Layout& layout = manifest.layout;
  line.layout = absl::StrCat("tp=", layout.tp, " pp=", layout.pp, " dp=", layout.dp, " zero=", layout.zero);
  line.epoch = manifest.epoch;
  return line;
}

CheckpointLine look_at(const std::string& path) {
  FileSystem& files = FileSystem::posix();
  const auto reader = checkpoint::CheckpointReader::open(files, path);
  CheckpointLine line;
  if (reader.ok()) {
    line = line_of(**reader);
  } else {
    line = {.path = path, .state = "damaged", .why = std::string(reader.status().message())};
    line.step = checkpoint::step_of(fs::path(path).filename().string()).value_or(0);
  }
  const auto pinned = checkpoint::is_pinned(files, path);
  line.pinned = pinned.ok() && *pinned;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    struct stat about {};
    if (::stat(entry->path().c_str(), &about) != 0 || entry->path().filename() == checkpoint::kPinName) continue;
    line.bytes += static_cast<uint64_t>(about.st_size);
    line.time = std::max<int64_t>(line.time, about.st_mtime);
  }
  return line;
}

bool print_json(Context& context, const nlohmann::ordered_json& value) {
  const Output output = context.options.output;
  if (output != Output::kJson && output != Output::kYaml) return false;
  context.out() << (output == Output::kJson ? json_text(value) : yaml_text(value));
  return true;
}

}  // namespace telar::client
