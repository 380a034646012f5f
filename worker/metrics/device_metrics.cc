#include "worker/metrics/device_metrics.h"

#include "worker/metrics/families.h"

namespace telar::metrics {

DeviceMetrics::DeviceMetrics(prometheus::Registry& registry)
    : faults_(prometheus::BuildCounter()
                  .Name("telar_device_faults_total")
                  .Help("Faults of devices by code, as the driver told of them.")
                  .Register(registry)),
      used_(gauge(registry, "telar_device_used_bytes", "Memory of a device in use, by whatever process.")),
      stale_(gauge(registry, "telar_telemetry_stale", "1 while the probe of the devices does not come back.").Add({})),
      success_(
          gauge(registry, "telar_telemetry_last_success_timestamp_seconds", "When the probe last came back.").Add({})),
      restarts_(prometheus::BuildCounter()
                    .Name("telar_probe_restarts_total")
                    .Help("Probes that ended or were killed for being late.")
                    .Register(registry)
                    .Add({})) {}

}  // namespace telar::metrics
