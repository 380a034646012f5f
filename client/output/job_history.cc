#include "client/output/job_history.h"

#include <algorithm>
#include <cmath>

#include "client/output/progress.h"

namespace telar::client {
namespace {

constexpr double kKept = 0.98;  // Of the smoothed loss, a step later.
constexpr size_t kWindow = 20;  // Steps.
constexpr uint64_t kRankZero = 0;

// Half as many points, each for two.
void join_neighbours(std::vector<Point>& points) {
  size_t kept = 0;
  for (size_t i = 0; i + 1 < points.size(); i += 2) {
    points[kept++] = {points[i + 1].step, (points[i].value + points[i + 1].value) / 2};
  }
  if (points.size() % 2 == 1) points[kept++] = points.back();
  points.resize(kept);
}

}  // namespace

void JobHistory::add(const v1::JobEvent& event) {
  if (const std::string line = event_line(event); !line.empty()) note(event.time().seconds(), line);
  if (!event.has_rank_report()) return;
  const v1::RankReport& report = event.rank_report();
  const v1::RankEvent& told = report.event();
  if (told.has_started()) start(report.rank(), report.epoch(), told.started());
  if (report.rank() != kRankZero) return;
  if (told.has_step()) step(told.step());
  if (told.has_eval() && std::isfinite(told.eval().loss())) {
    eval_ = Point{told.eval().step(), told.eval().loss()};
    if (!best_eval_ || eval_->value < best_eval_->value) best_eval_ = eval_;
  }
}

void JobHistory::note(int64_t second, const std::string& text) {
  notes_.push_back({second, text});
  if (notes_.size() > kMostNotes) notes_.pop_front();
}

void JobHistory::start(uint32_t rank, uint64_t epoch, const v1::RankStarted& started) {
  if (epoch != epoch_) {
    epoch_ = epoch;
    hardware_flops_ = theory_ = 0;
    account_.Clear();
    window_.clear();
  }
  hardware_flops_ += started.hardware_flops_per_step();
  if (rank != kRankZero) return;
  theory_ = started.pipeline_bubble_theory();
  flops_per_token_ = static_cast<double>(started.flops_per_token());
  std::erase_if(losses_, [&](const Point& point) { return point.step > started.start_step(); });
  in_last_ = stride_;
  smoothed_.reset();
  for (const Point& point : losses_) smooth(point);
}

void JobHistory::step(const v1::StepReport& report) {
  step_tokens_ = report.tokens();
  if (report.has_account()) account_ = report.account();
  window_.push_back(report);
  window_.back().clear_account();
  if (window_.size() > kWindow) window_.pop_front();
  if (!std::isfinite(report.loss())) return;
  const Point point{report.step(), report.loss()};
  smooth(point);
  if (in_last_ < stride_ && !losses_.empty()) {  // One of several that share a point.
    Point& last = losses_.back();
    last.value += (point.value - last.value) / static_cast<double>(++in_last_);
    last.step = point.step;
    return;
  }
  losses_.push_back(point);
  in_last_ = 1;
  if (losses_.size() <= kMostPoints) return;
  join_neighbours(losses_);
  stride_ *= 2;
  in_last_ = stride_;
}

// The points may have steps between them.
void JobHistory::smooth(const Point& point) {
  if (smoothed_ && point.step > smoothed_step_) {
    const double kept = std::pow(kKept, static_cast<double>(point.step - smoothed_step_));
    smoothed_ = kept * *smoothed_ + (1 - kept) * point.value;
  } else {
    smoothed_ = point.value;
  }
  smoothed_step_ = point.step;
}

JobHistory::Shares JobHistory::shares() const {
  Shares shares;
  double seconds = 0;
  for (const v1::StepReport& report : window_) {
    seconds += report.seconds();
    for (const v1::PhaseTime& phase : report.phases()) {
      if (phase.phase() == "data_wait") shares.data_wait += phase.seconds();
      if (phase.phase() == "checkpoint_stall") shares.checkpoint_stall += phase.seconds();
    }
  }
  if (seconds <= 0) return {};
  shares.step_seconds = seconds / static_cast<double>(window_.size());
  shares.data_wait /= seconds;
  shares.checkpoint_stall /= seconds;
  return shares;
}

std::vector<v1::PhaseTime> JobHistory::parts() const {
  std::vector<v1::PhaseTime> parts(account_.parts().begin(), account_.parts().end());
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& one, const auto& other) { return one.seconds() > other.seconds(); });
  for (v1::PhaseTime& part : parts) part.set_seconds(part.seconds() / account_.seconds());
  return parts;
}

std::optional<double> JobHistory::bubble() const {
  const v1::PipelineUse& use = account_.pipeline();
  if (use.window_seconds() <= 0) return std::nullopt;
  return (use.warmup_idle_seconds() + use.steady_idle_seconds() + use.cooldown_idle_seconds()) / use.window_seconds();
}

double JobHistory::hardware_share() const {
  const double model = flops_per_token_ * static_cast<double>(step_tokens_);
  return model > 0 ? hardware_flops_ / model : 0;
}

}  // namespace telar::client
