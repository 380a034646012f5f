// Names below <run>/ckpt. Format: docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/file_system.h"

namespace telar::checkpoint {

inline constexpr const char* kLatestName = "LATEST";
inline constexpr std::string_view kLatestTemp = ".tmp-LATEST";

// A checkpoint is pinned by a file of this name in its directory, which no manifest lists.
inline constexpr const char* kPinName = "PINNED";
absl::StatusOr<bool> is_pinned(FileSystem& files, const std::string& path);

std::string checkpoints_dir(const std::string& run_dir);            // <run>/ckpt
std::string step_name(uint64_t step);                               // step-00001200
std::string temp_name(uint64_t step, uint64_t attempt);             // .tmp-step-00001200-3
std::string trash_name(const std::string& name, uint64_t attempt);  // .trash-step-00001200-3
std::string board_name(uint64_t step, uint64_t attempt);            // .board-step-00001200-3
std::string shard_name(size_t index);                               // shard-00000.safetensors
std::string shard_name(int rank, size_t index);                     // shard-r00003-00000.safetensors

// The step that a name of step_name() stands for, whatever its zeros; nothing for another name.
std::optional<uint64_t> step_of(std::string_view name);
// The attempt that a name of temp_name() or board_name() ends with.
std::optional<uint64_t> attempt_of_temp(std::string_view name);
std::optional<uint64_t> attempt_of_board(std::string_view name);
bool is_trash(std::string_view name);

struct Published {
  uint64_t step = 0;
  std::string path;
};
std::string parent_directory(const std::string& path);  // Of a path with a slash.
// Renames a directory of <run>/ckpt, durably; returns where it is now.
absl::StatusOr<std::string> move_to_trash(FileSystem& files, const std::string& path, uint64_t attempt);
// Takes one away: by way of the trash, so that nobody finds half of it, then file by file.
absl::Status discard(FileSystem& files, const std::string& path, uint64_t attempt);
// Takes away what attempts up to `attempt` left unfinished in <run>/ckpt, and the trash; a checkpoint there that is
// pinned gets its name back. What cannot be removed is told in `trouble`.
absl::Status sweep(FileSystem& files, const std::string& run_dir, uint64_t attempt, std::vector<absl::Status>& trouble);

// Makes LATEST name the step, by a rename.
absl::Status point_latest(FileSystem& files, const std::string& run_dir, uint64_t step, uint64_t attempt);
// Behind the removal of a checkpoint: if LATEST names one that is not there, makes it name the newest that is, or takes
// it away. A save that publishes meanwhile may be named by the next one only.
absl::Status correct_latest(FileSystem& files, const std::string& run_dir);

// The published directories of a run, newest first, good or not; none when there is no <run>/ckpt.
absl::StatusOr<std::vector<Published>> list_published(FileSystem& files, const std::string& run_dir);

}  // namespace telar::checkpoint
