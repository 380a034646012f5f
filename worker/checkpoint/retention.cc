#include "worker/checkpoint/retention.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

struct Complete {
  std::string path;
  Candidate about;
};

// The run's complete checkpoints, as far as opening tells, newest first.
absl::StatusOr<std::vector<Complete>> complete_ones(FileSystem& files, const std::string& run_dir) {
  const auto published = list_published(files, run_dir);
  if (!published.ok()) return published.status();
  std::vector<Complete> complete;
  for (const Published& one : *published) {
    const auto reader = CheckpointReader::open(files, one.path);
    if (!reader.ok()) continue;  // Damaged ones stay for whoever wants to know why.
    const auto pinned = is_pinned(files, one.path);
    if (!pinned.ok()) return pinned.status();
    complete.push_back({one.path, {one.step, (*reader)->manifest().eval_loss, *pinned}});
  }
  return complete;
}

// False: somebody pinned it meanwhile, and it stays.
absl::StatusOr<bool> discard_unless_pinned(FileSystem& files, const std::string& path, uint64_t attempt) {
  const auto trash = move_to_trash(files, path, attempt);
  if (!trash.ok()) return trash.status();
  const auto pinned = is_pinned(files, *trash);
  if (!pinned.ok()) return pinned.status();
  if (!*pinned) {
    const absl::Status removed = remove_with_files(files, *trash);
    return removed.ok() ? absl::StatusOr<bool>(true) : removed;
  }
  absl::Status status = files.rename(*trash, path);
  if (status.ok()) status = files.sync_directory(parent_directory(path));
  return status.ok() ? absl::StatusOr<bool>(false) : status;
}

}  // namespace

std::vector<size_t> superfluous(std::span<const Candidate> candidates, const RetentionRule& rule) {
  if (rule.keep == 0) return {};
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return candidates[a].step > candidates[b].step; });
  std::vector<size_t> best;  // Newest first; so are equal ones behind the stable sort.
  std::copy_if(order.begin(), order.end(), std::back_inserter(best),
               [&](size_t at) { return candidates[at].eval_loss.has_value(); });
  std::stable_sort(best.begin(), best.end(),
                   [&](size_t a, size_t b) { return *candidates[a].eval_loss < *candidates[b].eval_loss; });
  best.resize(std::min<size_t>(best.size(), rule.keep_best));
  std::vector<size_t> old(order.begin() + std::min<ptrdiff_t>(rule.keep, std::ssize(order)), order.end());
  std::erase_if(old, [&](size_t at) {
    const Candidate& one = candidates[at];
    const bool milestone = rule.keep_every > 0 && one.step % rule.keep_every == 0;
    return one.pinned || milestone || std::find(best.begin(), best.end(), at) != best.end();
  });
  std::reverse(old.begin(), old.end());
  return old;
}

Retained retain(FileSystem& files, const std::string& run_dir, const std::string& fresh, uint64_t attempt,
                const RetentionRule& rule) {
  Retained result;
  if (rule.keep == 0) return result;
  const auto complete = complete_ones(files, run_dir);
  if (!complete.ok()) return {{}, {complete.status()}};
  std::vector<Candidate> candidates;
  for (const Complete& one : *complete) candidates.push_back(one.about);
  std::vector<std::string> old;
  for (const size_t at : superfluous(candidates, rule)) {
    if ((*complete)[at].path != fresh) old.push_back((*complete)[at].path);
  }
  if (old.empty()) return result;
  if (absl::Status good = verify_checkpoint(files, fresh); !good.ok()) return {{}, {good}};
  for (const std::string& path : old) {
    const auto gone = discard_unless_pinned(files, path, attempt);
    if (!gone.ok()) {
      result.warnings.push_back(gone.status());
    } else if (*gone) {
      result.removed.push_back(path);
    }
  }
  return result;
}

absl::Status pin(FileSystem& files, const std::string& path) {
  if (auto listed = files.list(path); !listed.ok()) return listed.status();
  const absl::Status status = write_file(files, absl::StrCat(path, "/", kPinName), "");
  return status.ok() ? files.sync_directory(path) : status;
}

absl::Status unpin(FileSystem& files, const std::string& path) {
  const auto pinned = is_pinned(files, path);
  if (!pinned.ok()) return pinned.status();
  if (!*pinned) return absl::OkStatus();
  const absl::Status status = files.remove_file(absl::StrCat(path, "/", kPinName));
  return status.ok() ? files.sync_directory(path) : status;
}

absl::Status remove_checkpoint(FileSystem& files, const std::string& path, bool force) {
  const auto pinned = is_pinned(files, path);
  if (!pinned.ok()) return pinned.status();
  if (*pinned && !force) return absl::FailedPreconditionError(absl::StrCat("checkpoint ", path, " is pinned"));
  const std::string parent = parent_directory(path);
  const std::string name = path.substr(path.find_last_of('/') + 1);
  if (!force && verify_checkpoint(files, path).ok()) {
    const auto names = files.list(parent);
    if (!names.ok()) return names.status();
    const bool another = std::any_of(names->rbegin(), names->rend(), [&](const std::string& other) {
      return other != name && step_of(other) && verify_checkpoint(files, absl::StrCat(parent, "/", other)).ok();
    });
    if (!another) {
      return absl::FailedPreconditionError(absl::StrCat("checkpoint ", path, " is the only good one of its run"));
    }
  }
  if (*pinned) {
    if (auto status = unpin(files, path); !status.ok()) return status;
  }
  // What an earlier removal left half done would be in the way.
  if (auto status = remove_with_files(files, absl::StrCat(parent, "/", trash_name(name, 0))); !status.ok()) {
    return status;
  }
  if (auto status = discard(files, path, 0); !status.ok()) return status;
  const std::string run_dir = parent.substr(0, parent.find_last_of('/'));
  return parent == checkpoints_dir(run_dir) ? correct_latest(files, run_dir) : absl::OkStatus();
}

}  // namespace telar::checkpoint
