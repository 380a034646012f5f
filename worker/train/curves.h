// What a run writes down of its curves: metrics.jsonl always, TensorBoard's files where the spec asks for them. Rank 0
// alone has them.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/train/metrics_file.h"
#include "worker/train/tensorboard_file.h"

namespace telar::train {

// One thread. Errors are those of metrics.jsonl. What TensorBoard would show is worth no run: where its file cannot be
// written, a warning says so once, and it ends there.
class Curves {
 public:
  static absl::StatusOr<std::unique_ptr<Curves>> open(const v1::RankPlan& plan, const v1::RankStarted& started);

  absl::Status write(const v1::StepReport& step) { return write_both(step); }
  absl::Status write(const v1::EvalReport& eval) { return write_both(eval); }
  absl::Status write(const v1::CheckpointReport& save) { return write_both(save); }

 private:
  explicit Curves(std::unique_ptr<MetricsFile> metrics) : metrics_(std::move(metrics)) {}
  template <typename Report>
  absl::Status write_both(const Report& report) {
    if (tensorboard_ != nullptr) check(tensorboard_->write(report));
    return metrics_->write(report);
  }
  void check(const absl::Status& status);

  const std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<TensorBoardFile> tensorboard_;  // Null: not asked for, or given up.
};

}  // namespace telar::train
