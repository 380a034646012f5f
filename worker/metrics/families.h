// Prometheus families by name and help.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

namespace telar::metrics {

inline prometheus::Family<prometheus::Gauge>& gauge(prometheus::Registry& registry, const char* name,
                                                    const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

inline prometheus::Family<prometheus::Counter>& counter(prometheus::Registry& registry, const char* name,
                                                        const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

}  // namespace telar::metrics
