#include "server/rpc/security_figures.h"

#include <utility>

#include "common/tls.h"

namespace telar::server::rpc {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric metric(MetricType type, double value, std::vector<ClientMetric::Label> labels) {
  ClientMetric one;
  one.label = std::move(labels);
  (type == MetricType::Counter ? one.counter.value : one.gauge.value) = value;
  return one;
}

MetricFamily family(const char* name, const char* help, MetricType type, double value) {
  return {name, help, type, {metric(type, value, {})}};
}

double expiry(const std::string& path) {
  const auto certificate = read_certificate(path);
  if (!certificate.ok()) return 0;
  return std::chrono::duration<double>(certificate->not_after.time_since_epoch()).count();
}

}  // namespace

std::vector<MetricFamily> security_figures(const auth::Guard& guard, const std::string& certificate) {
  const auth::Guard::Figures figures = guard.figures();
  MetricFamily refused{"telar_refused_calls_total", "Calls that were not let in, by reason", MetricType::Counter, {}};
  for (const auto& [reason, count] : figures.refused) {
    refused.metric.push_back(metric(MetricType::Counter, static_cast<double>(count), {{"reason", reason}}));
  }
  std::vector<MetricFamily> all;
  all.push_back(std::move(refused));
  all.push_back(family("telar_audit_lost_total", "Entries that the audit log could not take", MetricType::Counter,
                       static_cast<double>(figures.audit_lost)));
  all.push_back(family("telar_security_reload_failures_total", "Changed --tokens or --revoked files that were no good",
                       MetricType::Counter, static_cast<double>(figures.reload_failures)));
  if (!certificate.empty()) {
    all.push_back(family("telar_tls_certificate_expiry_timestamp_seconds", "When the own certificate ends",
                         MetricType::Gauge, expiry(certificate)));
  }
  return all;
}

}  // namespace telar::server::rpc
