// The rank's events file: one RankEvent a line, as protobuf JSON. The worker daemon reads it by offset, so what is
// written is never changed.
//
// A full disk does not end a run: events wait in memory and follow when there is room. What waits is bounded; beyond
// that reports of steps are left out, which the next ones make up for.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"

namespace telar::train {

class EventLog {
 public:
  static absl::StatusOr<std::unique_ptr<EventLog>> open(const std::string& path);  // Appends.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Stamps the time and appends. STORAGE: the file cannot be written, for another reason than a full disk; or the event
  // is the run's last one (finished or failure) and there was no room for it for `patience`. Thread safe.
  absl::Status write(v1::RankEvent event);
  // Asked now and then for the bytes that the rank's log has lost since it was last asked; an event tells of them. Set
  // it before any write.
  void set_lost_log(std::function<uint64_t()> lost_log) { lost_log_ = std::move(lost_log); }
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }  // Before any write.

 private:
  EventLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  static absl::StatusOr<std::string> line_of(v1::RankEvent event);  // With the time now.
  void tell_lost_log();                                             // With mutex_ held, as the next.
  // Writes what waits, as far as there is room.
  absl::Status flush();

  const std::string path_;
  const int fd_;
  std::function<uint64_t()> lost_log_;  // May be empty.
  std::chrono::milliseconds patience_{60'000};
  std::mutex mutex_;
  std::string waiting_;  // Whole lines, but for a first one that is partly written; guarded by mutex_.
};

}  // namespace telar::train
