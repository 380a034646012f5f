#include "worker/train/curves.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

namespace telar::train {

absl::StatusOr<std::unique_ptr<Curves>> Curves::open(const v1::RankPlan& plan, const v1::RankStarted& started) {
  static const RealClock kClock;
  auto metrics = MetricsFile::open(plan.run_dir(), started.start_step());
  if (!metrics.ok()) return metrics.status();
  std::unique_ptr<Curves> curves(new Curves(*std::move(metrics)));
  if (!plan.spec().output().tensorboard()) return curves;
  auto tensorboard = TensorBoardFile::open(plan, started.start_step(), &kClock);
  if (tensorboard.ok()) curves->tensorboard_ = *std::move(tensorboard);
  curves->check(tensorboard.ok() ? curves->tensorboard_->write(started) : tensorboard.status());
  return curves;
}

void Curves::check(const absl::Status& status) {
  if (status.ok()) return;
  spdlog::warn("no more for TensorBoard in this run: {}", std::string(status.message()));
  tensorboard_.reset();
}

}  // namespace telar::train
