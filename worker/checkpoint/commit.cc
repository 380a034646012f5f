#include "worker/checkpoint/commit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Temporary directories of attempts up to `attempt` that have a manifest: the only ones that anybody asked about.
absl::StatusOr<std::vector<std::string>> finished_temps(FileSystem& files, const std::string& parent,
                                                        uint64_t attempt) {
  std::vector<std::string> finished;
  const auto names = files.list(parent);
  if (absl::IsNotFound(names.status())) return finished;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const auto of = attempt_of_temp(name);
    if (!of || *of > attempt) continue;
    const auto inside = files.list(absl::StrCat(parent, "/", name));
    if (inside.ok() && std::ranges::find(*inside, std::string(kManifestName)) != inside->end()) {
      finished.push_back(name);
    }
  }
  return finished;
}

}  // namespace

bool refused(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status);
}

absl::Status PatientCommitter::commit(const Decision& wanted) {
  {
    const std::lock_guard lock(mutex_);
    deadline_ = most_ ? std::optional(Clock::now() + *most_) : std::nullopt;
  }
  return ask([&] { return service_.commit(wanted); },
             absl::StrCat("whether step ", wanted.step, " of attempt ", wanted.attempt, " may be published"));
}

absl::StatusOr<std::optional<Decision>> PatientCommitter::last() {
  {
    const std::lock_guard lock(mutex_);
    deadline_ = Clock::now() + std::min(patience_for_last_, most_.value_or(patience_for_last_));
  }
  std::optional<Decision> decision;
  const absl::Status status = ask(
      [&] {
        auto answer = service_.last();
        if (answer.ok()) decision = *answer;
        return answer.status();
      },
      "which checkpoint was decided last");
  if (!status.ok()) return status;
  return decision;
}

absl::Status PatientCommitter::ask(const std::function<absl::Status()>& call, const std::string& what) {
  const auto start = Clock::now();
  for (std::chrono::milliseconds pause = pauses_.first;; pause = std::min(2 * pause, pauses_.longest)) {
    const absl::Status status = call();
    if (status.ok() || refused(status)) return status;
    if (pause == pauses_.first && service_.on_wait) service_.on_wait(status);
    std::unique_lock lock(mutex_);
    const auto again = Clock::now() + pause;
    const auto until = [&] { return deadline_ ? std::min(*deadline_, again) : again; };  // set_patience() moves it.
    while (Clock::now() < until()) changed_.wait_until(lock, until());
    if (deadline_ && Clock::now() >= *deadline_) {
      return absl::UnavailableError(absl::StrCat("asked the coordinator for ", seconds(Clock::now() - start), " s ",
                                                 what, ", in vain: ", std::string(status.message())));
    }
  }
}

void PatientCommitter::set_patience(std::optional<std::chrono::milliseconds> most) {
  const std::lock_guard lock(mutex_);
  most_ = most;
  deadline_ = most ? std::optional(Clock::now() + *most) : std::nullopt;
  changed_.notify_all();
}

absl::StatusOr<std::optional<std::string>> roll_forward(FileSystem& files, const std::string& run_dir, uint64_t attempt,
                                                        Committer& committer, std::vector<absl::Status>& notes) {
  const std::string parent = checkpoints_dir(run_dir);
  if (!committer.remembers()) return std::nullopt;
  const auto finished = finished_temps(files, parent, attempt);
  if (!finished.ok()) return finished.status();
  if (finished->empty()) return std::nullopt;
  const auto decided = committer.last();
  if (!decided.ok()) return decided.status();
  if (!*decided) return std::nullopt;
  const Decision& decision = **decided;
  const std::string name = temp_name(decision.step, decision.attempt);
  const std::string temp = absl::StrCat(parent, "/", name),
                    target = absl::StrCat(parent, "/", step_name(decision.step));
  if (std::ranges::find(*finished, name) == finished->end()) return std::nullopt;  // Renamed, or never to be.
  if (const auto whole = verify_checkpoint(files, temp); !whole.ok()) {
    notes.push_back(absl::Status(whole.code(), absl::StrCat(temp, " was to be published, but is damaged: ",
                                                            whole.message(), "; an older checkpoint has to do")));
    return std::nullopt;
  }
  if (const auto standing = files.list(target); standing.ok()) {
    const auto status = verify_checkpoint(files, target);
    if (status.ok()) return std::nullopt;
    if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
    if (auto removed = discard(files, target, attempt); !removed.ok()) return removed;
  }
  if (auto status = files.rename(temp, target); !status.ok()) {
    // Whoever saved it may have woken up and been quicker.
    if (absl::IsNotFound(status) && files.list(target).ok()) return std::nullopt;
    return status;
  }
  if (auto status = files.sync_directory(parent); !status.ok()) return status;
  if (auto status = point_latest(files, run_dir, decision.step, attempt); !status.ok()) notes.push_back(status);
  return target;
}

}  // namespace telar::checkpoint
