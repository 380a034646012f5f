// <run dir>/events.out.tfevents.*: the run's curves for TensorBoard, where the spec asks for them (output.tensorboard).
// Written by rank 0 alone, which has the lines of metrics.jsonl at hand and knows the step that it resumed from.
//
// Each start makes a file of its own, which sorts behind those that are there: readers take them in the order of their
// names. Its second event is a SessionLog START of the first step to come, which makes readers forget what an earlier
// file says of that step and later ones.
//
// A record: length (8 bytes), masked CRC-32C of these, data, masked CRC-32C of the data; numbers are little-endian.
// Masked is rotated right by 15 bits, plus 0xa282ead8 (TensorFlow's lib/io/record_writer and lib/hash/crc32c).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "telar/v1/rank.pb.h"
#include "worker/train/tensorboard.pb.h"

namespace telar::train {

// One thread. Errors name operation and path.
class TensorBoardFile {
 public:
  // `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<TensorBoardFile>> open(const v1::RankPlan& plan, uint64_t start_step,
                                                               const telar::Clock* clock);
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;

  // memory/<class>, in bytes; of a step also where it tells of classes that no plan knows.
  absl::Status write(const v1::RankStarted& started);
  // train/*, throughput/*, phases/*, account/*, pipeline/bubble.
  absl::Status write(const v1::StepReport& step);
  absl::Status write(const v1::EvalReport& eval);        // eval/loss, eval/source/<name>.
  absl::Status write(const v1::CheckpointReport& save);  // checkpoint/*, of one that was published.

 private:
  TensorBoardFile(std::string path, int fd, const telar::Clock* clock)
      : path_(std::move(path)), fd_(fd), clock_(clock) {}
  absl::Status append(uint64_t step, tensorboard::Event event);

  const std::string path_;
  const int fd_;
  const telar::Clock* const clock_;
};

// One framed record.
std::string tensorboard_record(const std::string& data);

}  // namespace telar::train
