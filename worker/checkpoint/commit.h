// Who decides that a checkpoint counts, once it is durable under its temporary name: docs/formats/checkpoint.md,
// Saving.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/file_system.h"

namespace telar::checkpoint {

// The checkpoint of `step`, saved by attempt (allocation epoch) `attempt`, may be published.
struct Decision {
  uint64_t step = 0;
  uint64_t attempt = 0;
  bool operator==(const Decision&) const = default;
};

// Threads: commit() and last() are for one at a time.
class Committer {
 public:
  virtual ~Committer() = default;
  // Blocks until it is decided. OK: it may be published. refused(): it may not, now or ever. Any other error: nobody
  // knows; a later life finds out by last().
  virtual absl::Status commit(const Decision& wanted) = 0;
  // The last decision of the run; nothing: there is none, or nobody remembers.
  virtual absl::StatusOr<std::optional<Decision>> last() = 0;
  // Whether last() tells of commit() whatever has died since.
  virtual bool remembers() const = 0;
};

// FAILED_PRECONDITION, NOT_FOUND, INVALID_ARGUMENT, UNIMPLEMENTED: asked again, the answer would be the same.
bool refused(const absl::Status& status);

// For a process without a coordinator: the rename that publishes is all there is.
class LocalCommitter final : public Committer {
 public:
  absl::Status commit(const Decision&) override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<Decision>> last() override { return std::nullopt; }
  bool remembers() const override { return false; }
};

// Through a service that may be away for a while: asks again, ever more slowly, until it is answered.
class PatientCommitter final : public Committer {
 public:
  struct Service {
    std::function<absl::Status(const Decision&)> commit;
    std::function<absl::StatusOr<std::optional<Decision>>()> last;
    std::function<void(const absl::Status& error)>
        on_wait;  // Told of the first failed call of each wait; may be empty.
  };
  struct Pauses {
    std::chrono::milliseconds first{100}, longest{5000};
  };
  PatientCommitter(Service service, std::chrono::milliseconds patience_for_last, Pauses pauses)
      : service_(std::move(service)), patience_for_last_(patience_for_last), pauses_(pauses) {}

  absl::Status commit(const Decision& wanted) override;
  absl::StatusOr<std::optional<Decision>> last() override;
  bool remembers() const override { return true; }

  // From now on a commit that has waited `most` is given up, with UNAVAILABLE; one under way has that much left.
  // Nothing: none is given up, and so it is at first. Any thread.
  void set_patience(std::optional<std::chrono::milliseconds> most);

 private:
  using Clock = std::chrono::steady_clock;
  absl::Status ask(const std::function<absl::Status()>& call, const std::string& what);

  const Service service_;
  const std::chrono::milliseconds patience_for_last_;
  const Pauses pauses_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::optional<std::chrono::milliseconds> most_;
  std::optional<Clock::time_point> deadline_;  // Of the wait under way.
};

// At the start of an attempt, before anything is swept: publishes what an earlier one had decided but not renamed.
// Returns the path if it did. What is lost beyond help, or is not certain to be, is told in `notes`. Asks the committer
// only where an earlier attempt has left something that may have been decided; its error is returned.
absl::StatusOr<std::optional<std::string>> roll_forward(FileSystem& files, const std::string& run_dir, uint64_t attempt,
                                                        Committer& committer, std::vector<absl::Status>& notes);

}  // namespace telar::checkpoint
