// One rank's directory: the memory that survives the daemon.
//
//   <state>/ranks/<job id>/<epoch>/<rank>/
//     plan.json     RankPlan as protobuf JSON; written by rename before the process starts
//     events.jsonl  one RankEvent as protobuf JSON a line; appended by the rank
//     log           stdout and stderr of the rank; appended
//     flight        the rank's last calls to its peers, and a count that grows while it gets on; see worker/flight
//     pid.json      who the process is; written by the spawner by rename before the program runs
//     exit.json     {"exit_code": n}, 128 + n for signal n; written by the spawner by rename
//     wishes.json   RankWishes as protobuf JSON: what is asked of a rank that runs; by rename
//     memory.json   bytes in use on its device before it started, where that is known
//     shipped.json  how much the coordinator has acknowledged; a hint, the coordinator's word wins
//   <state>/finished/<job id>.<epoch>.<rank>/   the same after the coordinator let go of it; the newest few stay
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/agent/process.h"

namespace telar::agent {

struct RankKey {
  std::string job;  // projects/{project}/jobs/{job}
  uint64_t epoch = 0;
  uint32_t rank = 0;
  auto operator<=>(const RankKey&) const = default;
};
RankKey key_of(const v1::RankPlan& plan);
std::string to_string(const RankKey& key);  // "projects/default/jobs/x epoch 2 rank 0"

// The last segment of a job's name. INVALID_ARGUMENT when it could not be a folder's name.
absl::StatusOr<std::string> job_id(const std::string& job);

// Replaces a file by rename: a reader sees the old or the new one. The error names the path.
absl::Status write_file(const std::string& path, const std::string& content);
absl::StatusOr<std::string> read_file(const std::string& path);  // NOT_FOUND when there is none.

struct RankProcess {
  ProcessId id;
  std::string cgroup;
};
struct ShippedOffsets {
  uint64_t log_offset = 0;
  uint64_t event_line = 0;
};
struct RankExit {
  int exit_code = 0;
  std::string message;  // Why it never started; else empty.
};

class RankDir {
 public:
  explicit RankDir(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string plan_path() const { return path_ + "/plan.json"; }
  std::string events_path() const { return path_ + "/events.jsonl"; }
  std::string flight_path() const { return path_ + "/flight"; }
  std::string wishes_path() const;
  std::string log_path() const { return path_ + "/log"; }
  std::string marker() const { return "TELAR_RANK_DIR=" + path_; }

  absl::Status create(const v1::RankPlan& plan) const;  // With plan.json.
  absl::StatusOr<v1::RankPlan> read_plan() const;
  absl::Status write_process(const RankProcess& process) const;
  std::optional<RankProcess> read_process() const;
  absl::Status write_exit(const RankExit& exit) const;
  std::optional<RankExit> read_exit() const;
  absl::Status write_shipped(const ShippedOffsets& offsets) const;
  ShippedOffsets read_shipped() const;  // Zeros when unknown.
  // Bytes in use on the rank's device before it started. A hint: without it nobody asks whether they are back.
  absl::Status write_memory_before(uint64_t bytes) const;
  std::optional<uint64_t> read_memory_before() const;
  absl::Status write_wishes(const v1::RankWishes& wishes) const;  // Nothing where they are there already.

 private:
  std::string path_;
};

// The directories below one state directory.
class StateDir {
 public:
  // Makes <path> and what is below it, and takes its lock file; `path` becomes absolute. FAILED_PRECONDITION names the
  // path when another daemon holds it.
  static absl::StatusOr<StateDir> open(const std::string& path);

  const std::string& path() const { return path_; }
  int lock_file() const { return lock_file_; }  // Held until the process ends.
  absl::StatusOr<RankDir> rank_dir(const RankKey& key) const;
  // Every rank directory with a readable plan.json whose process was started; others are removed
  // (and their processes killed).
  std::vector<std::pair<v1::RankPlan, RankDir>> scan() const;
  // Moves the directory to finished/, of which the newest `keep` stay.
  void retire(const RankKey& key, const RankDir& directory, int keep) const;

 private:
  StateDir(std::string path, int lock_file) : path_(std::move(path)), lock_file_(lock_file) {}
  std::string path_;
  int lock_file_;
};

}  // namespace telar::agent
