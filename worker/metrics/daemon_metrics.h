// What the worker daemon says about itself on /metrics.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include "telar/v1/rank.pb.h"

namespace telar::metrics {

// Thread safe. The registry must outlive it.
class DaemonMetrics {
 public:
  DaemonMetrics(prometheus::Registry& registry, const std::string& version, const std::string& node);

  void set_connected(bool connected) { connected_.Set(connected ? 1 : 0); }
  void set_heartbeat_time(double unix_seconds) { heartbeat_.Set(unix_seconds); }
  // `state`: running | exited.
  void set_ranks(const std::string& state, int count) { ranks_.Add({{"state", state}}).Set(count); }
  // Counts one rank's end; FAILURE_CLASS_UNSPECIFIED is class "none".
  void count_exit(v1::FailureClass failure);
  void count_lost_log(uint64_t bytes) { lost_log_.Increment(static_cast<double>(bytes)); }

 private:
  prometheus::Gauge& connected_;
  prometheus::Gauge& heartbeat_;
  prometheus::Family<prometheus::Gauge>& ranks_;
  prometheus::Family<prometheus::Counter>& exits_;
  prometheus::Counter& lost_log_;
};

}  // namespace telar::metrics
