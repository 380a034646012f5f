// The training figures of the ranks on this node as Prometheus series, made from their events.
//
// Figures of a whole job (loss, learning rate, checkpoints, ...) come from rank 0 only. Tokens and model FLOPs of a
// step are global in its event; each rank counts its 1 / world_size of them, so that sum by (job_id) is right.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "telar/v1/rank.pb.h"

namespace telar::metrics {

// Thread safe. The registry must outlive it. A newer epoch of a rank replaces the series of the older one.
class RankMetrics {
 public:
  RankMetrics(prometheus::Registry& registry, std::string node);
  ~RankMetrics();

  // Begins the series of a rank, with telar_rank_info. `job_id` is the label value. Only plan's job facts are read.
  void add(const std::string& job_id, const v1::RankPlan& plan);
  // One event, in order. Events of a rank or epoch that was not added are ignored.
  void observe(const std::string& job_id, uint64_t epoch, uint32_t rank, const v1::RankEvent& event);
  // Ends the series. Does nothing if a newer epoch has them.
  void forget(const std::string& job_id, uint64_t epoch, uint32_t rank);

 private:
  struct Families;
  struct Rank;
  using Key = std::pair<std::string, uint32_t>;

  void observe_started(Rank& rank, const v1::RankStarted& started);
  void observe_step(Rank& rank, const v1::StepReport& step, double time);
  void observe_time(Rank& rank, const v1::StepReport& step);
  void observe_eval(Rank& rank, const v1::EvalReport& eval);
  void observe_checkpoint(Rank& rank, const v1::CheckpointReport& checkpoint, double time);

  const std::string node_;
  const std::unique_ptr<Families> families_;  // Constant after construction; its members are thread safe.
  std::mutex mutex_;
  std::map<Key, Rank> ranks_;  // Guarded by mutex_.
};

}  // namespace telar::metrics
