// Which checkpoints of a run stay, and how the others go. Rules: docs/formats/checkpoint.md, "Retention".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/file_system.h"

namespace telar::checkpoint {

// A checkpoint stays when any of these wants it, or it is pinned.
struct RetentionRule {
  uint32_t keep = 0;        // The newest; 0: all stay.
  uint64_t keep_every = 0;  // Those of steps that are multiples of it; 0: none.
  uint32_t keep_best = 0;   // Those with the smallest evaluation losses; of equal ones the newer.
  bool operator==(const RetentionRule&) const = default;
};

struct Candidate {
  uint64_t step = 0;
  std::optional<double> eval_loss;
  bool pinned = false;
};
// Indices of those that need not stay, oldest first; never the newest.
std::vector<size_t> superfluous(std::span<const Candidate> candidates, const RetentionRule& rule);

struct Retained {
  std::vector<std::string> removed;
  std::vector<absl::Status> warnings;  // What went wrong without harm; to be logged.
};
// Takes away what `rule` does not want of the run's complete checkpoints, once `fresh`, which was just published and
// stays in any case, was read back and verified: when it is not good, nothing goes. Damaged directories and those of a
// newer format are left alone. Blocks for as long as that reading takes; from any thread, one call a run at a time.
Retained retain(FileSystem& files, const std::string& run_dir, const std::string& fresh, uint64_t attempt,
                const RetentionRule& rule);

// Pins: run_files.h. Whoever sets or removes one needs no other process: retention looks for it again once the
// directory is in the trash, and then puts that back. Durable when they return. NOT_FOUND: no such checkpoint, or it
// was just being removed.
absl::Status pin(FileSystem& files, const std::string& path);
absl::Status unpin(FileSystem& files, const std::string& path);  // Also of one that is not pinned.

// Removes one checkpoint at a person's wish. Without `force` FAILED_PRECONDITION when it is pinned, or when it is good
// and no other one of its directory is, which is found out by reading. LATEST does not go on naming it.
absl::Status remove_checkpoint(FileSystem& files, const std::string& path, bool force);

}  // namespace telar::checkpoint
