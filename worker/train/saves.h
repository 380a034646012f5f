// The saves of one run: when training waits for them, how they end, and what is told about them.
//
// With checkpoint.async a save goes beside the steps that follow:
//   behind submit(N)    stage()    masters and moments begin to be copied to the host; only the update of N + 1 waits
//   behind finish(N)    write()    the step is good: a thread waits for the copy, writes, has it decided, publishes
//   before submit(M)    make_room()  M being the next step that a save is due behind: waits for the one before
// Else save_now() does all of it between two steps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "telar/v1/rank.pb.h"
#include "worker/train/replica.h"
#include "worker/train/saved_state.h"

namespace telar::train {

// Threads: one caller.
class Saves {
 public:
  // Saves in a row that may fail while training goes on; the next one ends the run.
  static constexpr int kMostFailures = 2;

  // How long a save that only waits for the coordinator keeps training waiting for the next one, and the end of a run.
  struct Patience {
    std::chrono::milliseconds for_next = std::chrono::seconds(15);
    std::chrono::milliseconds at_end = std::chrono::minutes(5);
  };

  // All must outlive it. `coordinator` is whom `saved` asks, null without one.
  Saves(const v1::RankPlan& plan, const SavedState& saved, Replica& replica, checkpoint::PatientCommitter* coordinator,
        Patience patience);
  ~Saves();  // What is under way is given up.
  Saves(const Saves&) = delete;
  Saves& operator=(const Saves&) = delete;

  // With checkpoint.async, takes the host memory that it needs, of which `available_bytes` are free for all ranks of
  // the node. Errors and `store` as of find_host_memory().
  absl::Status prepare(uint64_t available_bytes, backend::KeyValueStore* store);
  bool async() const { return replica_.snapshot() != nullptr; }
  uint64_t host_bytes() const { return async() ? replica_.snapshot()->bytes() : 0; }

  // Whether a step that a save is due behind may be submitted at all, be it after make_room(): not while one is staged.
  bool may_stage() const { return staged_ == 0; }
  // Seconds that it waited. With a coordinator that does not answer the save under way is given up after a while:
  // training goes on without it, and its place is another's.
  double make_room();
  // An error, of class STORAGE, that ends the run: another attempt has taken its place, or this one was refused, and
  // nothing of it will ever count; or other ranks wait for a save that this one could not tell them it has given up. To
  // be asked behind make_room(): going on, it would wait for them in the step that they wait before.
  absl::Status check_end() const;
  absl::Status stage(uint64_t step);
  void write(const Position& position);
  // A step's update waited for the last copy.
  void count_stall(double seconds) { stalls_[last_staged_] += seconds; }

  // An error of the save is the caller's to decide about; it is among the reports, too.
  absl::Status save_now(const Position& position);
  // Behind the last step: waits for what is under way, though not for ever for the coordinator. The error of the save
  // of `step`, if there was one.
  absl::Status finish(uint64_t step);
  // After a failure of the run: gives what is under way so long.
  void finish_or_give_up(std::chrono::milliseconds patience);

  // What has happened since the last call. An error as of check_end(), or of class STORAGE once too many saves in a row
  // failed; those that only the coordinator did not answer count neither way.
  absl::Status take_reports(std::vector<v1::CheckpointReport>& reports);

 private:
  using Clock = std::chrono::steady_clock;
  struct Task {
    Position position;
    Clock::time_point start;
  };
  void loop();
  void run(const Task& task);
  absl::StatusOr<SavedState::Saved> save(const SavedState::Values& values, const Task& task);
  void report(v1::CheckpointReport::State state, const Task& task, const absl::StatusOr<SavedState::Saved>& saved);
  int writers() const;

  const v1::RankPlan& plan_;
  const SavedState& saved_;
  Replica& replica_;
  checkpoint::PatientCommitter* const coordinator_;
  const Patience patience_;
  // Of the caller's thread.
  uint64_t staged_ = 0, last_staged_ = 0;  // Steps; 0: none.
  Clock::time_point staged_at_;
  std::map<uint64_t, double> stalls_;  // By step whose save it was for.

  std::atomic<bool> give_up_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::optional<Task> task_;  // To be done, or being done.
  bool over_ = false;
  std::vector<v1::CheckpointReport> reports_;
  uint64_t last_step_ = 0;  // Of the last save that is over.
  absl::Status last_;       // How it ended.
  int failures_ = 0;        // In a row.
  absl::Status end_;        // See check_end().
  std::thread thread_;
};

}  // namespace telar::train
