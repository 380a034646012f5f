#include "worker/metrics/daemon_metrics.h"

#include <algorithm>
#include <cctype>
#include "worker/metrics/families.h"

namespace telar::metrics {
namespace {

std::string label(v1::FailureClass failure) {
  if (failure == v1::FAILURE_CLASS_UNSPECIFIED) return "none";
  std::string name = v1::FailureClass_Name(failure);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

}  // namespace

DaemonMetrics::DaemonMetrics(prometheus::Registry& registry, const std::string& version, const std::string& node)
    : connected_(gauge(registry, "telar_worker_connected", "1 while the coordinator answers the heartbeat.").Add({})),
      heartbeat_(
          gauge(registry, "telar_worker_heartbeat_timestamp_seconds", "When the coordinator last answered a heartbeat.")
              .Add({})),
      ranks_(gauge(registry, "telar_worker_ranks", "Rank processes that this worker knows, by state.")),
      exits_(prometheus::BuildCounter()
                 .Name("telar_worker_rank_exits_total")
                 .Help("Ended rank processes by failure class; none: no failure.")
                 .Register(registry)),
      lost_log_(prometheus::BuildCounter()
                    .Name("telar_worker_log_lost_bytes_total")
                    .Help("Bytes of ranks' logs that were given up before the coordinator had them.")
                    .Register(registry)
                    .Add({})) {
  gauge(registry, "telar_build_info", "Always 1; the labels say which build this is.")
      .Add({{"version", version}, {"program", "telar-worker"}, {"node", node}})
      .Set(1);
  for (const char* state : {"running", "exited"}) set_ranks(state, 0);
  for (int i = v1::FailureClass_MIN; i <= v1::FailureClass_MAX; ++i) {
    exits_.Add({{"class", label(static_cast<v1::FailureClass>(i))}});  // A rate() needs the zero before the first one.
  }
}

void DaemonMetrics::count_exit(v1::FailureClass failure) { exits_.Add({{"class", label(failure)}}).Increment(); }

}  // namespace telar::metrics
