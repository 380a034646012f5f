// The health of this node's devices on /metrics.
#pragma once

#include <string>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

namespace telar::metrics {

// Thread safe. The registry must outlive it. `device` is "gpu:3".
class DeviceMetrics {
 public:
  explicit DeviceMetrics(prometheus::Registry& registry);

  // Each fault counts: a gauge of the last one could show neither a second one nor that it is over.
  void count_fault(const std::string& device, const std::string& code, uint64_t times) {
    faults_.Add({{"device", device}, {"code", code}}).Increment(static_cast<double>(times));
  }
  void set_used_bytes(const std::string& device, uint64_t bytes) {
    used_.Add({{"device", device}}).Set(static_cast<double>(bytes));
  }
  void set_stale(bool stale) { stale_.Set(stale ? 1 : 0); }
  void set_success_time(double unix_seconds) { success_.Set(unix_seconds); }
  void count_probe_restart() { restarts_.Increment(); }

 private:
  prometheus::Family<prometheus::Counter>& faults_;
  prometheus::Family<prometheus::Gauge>& used_;
  prometheus::Gauge& stale_;
  prometheus::Gauge& success_;
  prometheus::Counter& restarts_;
};

}  // namespace telar::metrics
