// `telar ckpt ...`: what can be done with checkpoints by hand. Works on files of this machine; asks the coordinator
// only where a job is named, for its run directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/commands/context.h"
#include "client/output/checkpoints.h"
#include "worker/checkpoint/checkpoint_reader.h"

namespace telar::client {

// What is meant by the argument: a checkpoint's directory; a run directory, or its ckpt; a job, by id or label. Behind
// a run or job, @STEP or @latest picks one of its checkpoints.
struct CheckpointTarget {
  std::string run_dir;     // Absolute; empty for a checkpoint that stands by itself.
  std::string checkpoint;  // Absolute; empty: the argument names the run.
};
// NOT_FOUND, INVALID_ARGUMENT, or FAILED_PRECONDITION for a job whose run directory is not on this machine.
absl::StatusOr<CheckpointTarget> find_target(Context& context, const std::string& argument);
// As find_target(); a run alone is refused, or stands for its newest good checkpoint.
enum class RunMeans : uint8_t { kNothing, kNewest };
absl::StatusOr<std::string> find_checkpoint(Context& context, const std::string& argument, RunMeans run);

// What can be told without reading tensors.
CheckpointLine look_at(const std::string& path);
CheckpointLine line_of(const checkpoint::CheckpointReader& reader);

// With -o json or yaml prints the value and returns true.
bool print_json(Context& context, const nlohmann::ordered_json& value);

int ckpt_ls(Context& context, const std::string& run);
int ckpt_show(Context& context, const std::string& checkpoint);
// Reads every byte. kDamaged when one is damaged, else kRefused when one cannot be read.
int ckpt_verify(Context& context, const std::string& target);
// kDiffers when they differ in any bit of a tensor, in where they stand, or in their specs.
int ckpt_diff(Context& context, const std::string& a, const std::string& b);
struct CkptRmOptions {
  std::string checkpoint;
  bool force = false;  // Also a pinned one, and the only good one.
};
int ckpt_rm(Context& context, const CkptRmOptions& options);
int ckpt_pin(Context& context, const std::string& checkpoint, bool pinned);

}  // namespace telar::client
