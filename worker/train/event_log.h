// The rank's events file: one RankEvent a line, as protobuf JSON. The worker daemon reads it by offset, so a line is
// written by one write() and never changed.
#pragma once

#include <memory>
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

  // Stamps the time and appends.
  absl::Status write(v1::RankEvent event);

 private:
  EventLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

}  // namespace telar::train
