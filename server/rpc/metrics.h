// The coordinator's figures in Prometheus format. Counters and histograms are kept; gauges are read off the job manager
// when someone asks, so no series outlives what it tells of.
#pragma once

#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "server/jobs/job_manager.h"

namespace telar::server::rpc {

class Metrics final : public jobs::Observer {
 public:
  Metrics();

  void on_restart(v1::FailureClass cause) override;
  void on_placed(double queue_seconds) override;
  void on_hang(bool named) override;
  void on_straggler() override;
  void on_hold(jobs::Doing doing, double seconds) override;
  void on_commit(double seconds);
  void on_transaction();          // Of the store: may hold many commits.
  void on_round(double seconds);  // Of the scheduler.
  void on_missing_log(uint64_t bytes) { missing_log_.Increment(static_cast<double>(bytes)); }
  void on_call(const std::string& method, double seconds);

  // Further figures, asked for at each render(). Before the first one.
  void add_source(std::function<std::vector<prometheus::MetricFamily>()> source) {
    sources_.push_back(std::move(source));
  }
  // Everything in text format.
  std::string render(const jobs::JobManager& manager);

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& restarts_;
  prometheus::Family<prometheus::Counter>& hangs_;
  prometheus::Counter& stragglers_;
  prometheus::Family<prometheus::Histogram>& calls_;
  prometheus::Histogram& queue_wait_;
  prometheus::Histogram& commits_;
  prometheus::Counter& transactions_;
  prometheus::Histogram& rounds_;
  std::array<prometheus::Histogram*, jobs::kDoings.size()> holds_;
  prometheus::Counter& missing_log_;
  std::vector<std::function<std::vector<prometheus::MetricFamily>()>> sources_;
};

// Reports how long it lived as one call of `method`.
class CallTimer {
 public:
  CallTimer(Metrics* metrics, const char* method)
      : metrics_(metrics), method_(method), start_(std::chrono::steady_clock::now()) {}
  ~CallTimer() {
    metrics_->on_call(method_, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

 private:
  Metrics* const metrics_;
  const char* const method_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace telar::server::rpc
