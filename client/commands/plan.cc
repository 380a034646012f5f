#include <algorithm>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/forecast.h"
#include "client/spec/reader.h"
#include "worker/forecast/forecast.h"
#include "worker/forecast/precision.h"
#include "worker/forecast/rates.h"
#include "worker/forecast/remedies.h"
#include "worker/forecast/search.h"
#include "worker/plan/resolve.h"

namespace telar::client {
namespace {

// What the options say of where the job would run; else as many nodes of eight as it wants.
absl::Status read_cluster(Context& context, const PlanOptions& options, const v1::JobSpec& spec,
                          v1::ClusterShape& cluster, std::vector<Problem>& problems) {
  if (!options.cluster.empty()) {
    problems = read_spec_file(options.cluster, context.terminal.in, cluster).problems;
    if (!problems.empty()) return absl::OkStatus();
  }
  const bool cpu = spec.resources().kind() == v1::ResourceSpec::CPU;
  if (!options.gpu.empty()) cluster.set_gpu(options.gpu);
  if (cluster.gpu().empty() && !cluster.has_rates()) cluster.set_gpu(cpu ? "cpu" : "h200");
  if (options.nodes > 0) cluster.set_nodes(options.nodes);
  if (options.devices_per_node > 0) cluster.set_devices(options.devices_per_node);
  const uint32_t a_node = cluster.devices() > 0 ? cluster.devices() : 8;
  if (cluster.nodes() == 0) cluster.set_nodes((std::max(1u, spec.resources().devices()) + a_node - 1) / a_node);
  return forecast::complete_cluster(cluster);
}

int report_resolving(Context& context, const std::vector<::telar::plan::SpecProblem>& found, const std::string& file,
                     const SpecReading& reading) {
  std::vector<Problem> problems;
  for (const ::telar::plan::SpecProblem& one : found) {
    const std::string field = one.field.starts_with("spec.") ? one.field.substr(5) : one.field;
    const auto place = reading.places.find(field);
    problems.push_back({file, place == reading.places.end() ? Place{} : place->second, field, one.description});
  }
  return report_problems(context, problems);
}

bool has_auto_precision(const v1::JobSpec& spec) { return spec.precision().compute() == v1::AUTO; }

int print_search(Context& context, const v1::JobSpec& spec, const v1::ClusterShape& cluster) {
  const auto found =
      has_auto_precision(spec) ? forecast::search_auto_precision(spec, cluster) : forecast::search(spec, cluster);
  if (!found.ok()) return report(context, found.status());
  if (!context.print_message(*found)) {
    context.out() << search_page(*found, cluster.rates().name(), context.header());
    if (found->best_size() > 0) {
      context.out() << "\nthe first in full:\n"
                    << forecast_page(found->best(0), cluster.rates().name(), context.wide(), context.header());
    }
  }
  if (found->best_size() > 0) return kOk;
  context.err() << "error: no layout fits\n";
  return kRefused;
}

}  // namespace

int plan(Context& context, const PlanOptions& options) {
  v1::JobSpec spec;
  SpecReading reading = read_spec_file(options.file, context.terminal.in, spec);
  for (const std::string& assignment : options.sets) {
    for (Problem& problem : set_field(assignment, spec)) reading.problems.push_back(std::move(problem));
    reading.places.erase(assignment.substr(0, assignment.find('=')));
  }
  if (!reading.problems.empty()) return report_problems(context, reading.problems);
  v1::ClusterShape cluster;
  std::vector<Problem> problems;
  if (absl::Status status = read_cluster(context, options, spec, cluster, problems); !status.ok()) {
    return report(context, status);
  }
  if (!problems.empty()) return report_problems(context, problems);
  const std::string file = options.file == "-" ? "standard input" : options.file;
  if (has_auto_precision(spec)) {
    const auto found = forecast::check_auto_precision(spec, cluster.rates().kind());
    if (!found.empty()) return report_resolving(context, found, file, reading);
  }
  if (spec.parallel().auto_()) {
    if (spec.resources().devices() == 0) spec.mutable_resources()->set_devices(cluster.nodes() * cluster.devices());
    return print_search(context, spec, cluster);
  }
  if (!has_auto_precision(spec)) {
    const auto found = ::telar::plan::resolve(spec, cluster.rates().kind());
    if (!found.empty()) return report_resolving(context, found, file, reading);
  }
  auto result =
      has_auto_precision(spec) ? forecast::forecast_auto_precision(spec, cluster) : forecast::forecast(spec, cluster);
  if (!result.ok()) return report(context, result.status());
  if (!result->fits()) {
    for (const v1::Advice& advice : forecast::remedies(*result, cluster)) *result->add_advice() = advice;
  }
  if (!context.print_message(*result)) {
    context.out() << forecast_page(*result, cluster.rates().name(), context.wide(), context.header());
  }
  return result->fits() ? kOk : kRefused;
}

}  // namespace telar::client
