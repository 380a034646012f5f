// What a job's events tell of it over time: what a page about it needs beside the job as it is now. Fed with the events
// of the job from the first on; keeps a bounded part of them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "client/output/plot.h"
#include "telar/v1/jobs.pb.h"

namespace telar::client {

class JobHistory {
 public:
  struct Note {
    int64_t second = 0;  // Unix.
    std::string text;
  };
  // Over the last steps that were told of.
  struct Shares {
    double step_seconds = 0;  // Of a step; 0: nothing is known.
    double data_wait = 0;     // Of the time.
    double checkpoint_stall = 0;
  };
  static constexpr size_t kMostNotes = 32;
  static constexpr size_t kMostPoints = 4096;  // Of the curve; beyond that neighbours are joined.

  void add(const v1::JobEvent& event);
  void note(int64_t second, const std::string& text);

  // Loss by step. After a restart, what is done again counts in its new form.
  const std::vector<Point>& losses() const { return losses_; }
  // Exponential mean: a loss 50 steps back counts for about a third of the newest.
  std::optional<double> smoothed_loss() const { return smoothed_; }
  const std::optional<Point>& eval() const { return eval_; }
  const std::optional<Point>& best_eval() const { return best_eval_; }
  Shares shares() const;

  // Of the running epoch. Of rank 0: shares of the last step that was timed op by op, largest first; its pipeline's
  // bubble, and what the schedule makes of it.
  std::vector<v1::PhaseTime> parts() const;
  std::optional<double> bubble() const;
  double bubble_theory() const { return theory_; }
  // FLOPs that the kernels of all ranks compute, over the model's; what MFU times that is, is HFU. 0: not known.
  double hardware_share() const;
  const std::deque<Note>& notes() const { return notes_; }  // Oldest first.

 private:
  void start(uint32_t rank, uint64_t epoch, const v1::RankStarted& started);
  void step(const v1::StepReport& report);
  void smooth(const Point& point);

  std::vector<Point> losses_;
  size_t stride_ = 1, in_last_ = 1;  // Reports to a point; in the last one.
  std::optional<double> smoothed_;
  uint64_t smoothed_step_ = 0;
  std::optional<Point> eval_, best_eval_;
  std::deque<v1::StepReport> window_;  // Without accounts.
  uint64_t epoch_ = 0;
  v1::StepAccount account_;
  double theory_ = 0, hardware_flops_ = 0, flops_per_token_ = 0;
  uint64_t step_tokens_ = 0;
  std::deque<Note> notes_;
};

}  // namespace telar::client
