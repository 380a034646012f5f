// <run dir>/metrics.jsonl: the run's curve for people and scripts, one JSON object a step, evaluation or save. Written
// by rank 0 alone. On a resume the lines beyond the resumed step go, so the curve never overlaps itself.
//
// A full disk does not end a run: lines wait in memory and follow when there is room. What waits is bounded; lines
// beyond that, and those that wait when the run ends, are missing.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"

namespace telar::train {

class MetricsFile {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsFile>> open(const std::string& run_dir, uint64_t start_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  absl::Status write(const v1::StepReport& step);
  absl::Status write(const v1::EvalReport& eval);
  absl::Status write(const v1::CheckpointReport& save);  // Of one that is over.

 private:
  MetricsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status append(const std::string& line);
  absl::Status flush();  // As far as there is room.
  const std::string path_;
  const int fd_;
  std::string waiting_;  // Whole lines, but for a first one that is partly written.
};

}  // namespace telar::train
