// The rank's events file: one RankEvent a line, as protobuf JSON. The worker daemon reads it by offset, so what is
// written is never changed.
//
// A full disk does not end a run: events wait in memory and follow when there is room. What waits is bounded; beyond
// that reports of steps are left out, which the next ones make up for.
#pragma once

#include <chrono>
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
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }  // Before any write.

 private:
  EventLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  // Writes what waits, as far as there is room.
  absl::Status flush();

  const std::string path_;
  const int fd_;
  std::chrono::milliseconds patience_{60'000};
  std::mutex mutex_;
  std::string waiting_;  // Whole lines, but for a first one that is partly written; guarded by mutex_.
};

}  // namespace telar::train
