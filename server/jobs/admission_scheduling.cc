// What a spec says of queues, other jobs and nodes, against what there is.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/spec/suggest.h"
#include "server/jobs/admission.h"
#include "server/jobs/dependencies.h"
#include "server/jobs/requests.h"
#include "server/jobs/round.h"

namespace telar::server::jobs {

void check_queue(const std::string& name, const std::vector<QueueConfig>& queues, const std::string& field,
                 std::vector<Violation>& found) {
  std::vector<std::string> names;
  for (const QueueConfig& queue : queues) names.push_back(queue.name);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string near = client::nearest(name, names);
  found.push_back({field, absl::StrCat("'", name, "' is none of the queues: ", absl::StrJoin(names, ", "),
                                       near.empty() ? "" : absl::StrCat("; did you mean '", near, "'?"))});
}

void check_scheduling(v1::JobSpec& spec, const std::string& project, const SchedulingContext& context,
                      std::vector<Violation>& found) {
  v1::SchedulingSpec& scheduling = *spec.mutable_scheduling();
  check_queue(scheduling.queue(), *context.queues, "spec.scheduling.queue", found);
  for (int i = 0; i < scheduling.after_size(); ++i) {
    std::string& name = *scheduling.mutable_after(i)->mutable_job();
    if (name.empty()) continue;  // Told already.
    if (name.find('/') == std::string::npos) name = absl::StrCat(project, "/jobs/", name);
    if (context.find_job(name) != nullptr) continue;
    found.push_back({absl::StrCat("spec.scheduling.after[", i, "].job"),
                     absl::StrCat("'", name, "' does not exist; submit first what comes first")});
  }
}

absl::Status check_dependencies(const v1::JobSpec& spec, const SchedulingContext& context) {
  for (const v1::Dependency& dependency : spec.scheduling().after()) {
    const v1::Job& job = *context.find_job(dependency.job());
    if (check(dependency, job) != Dependence::kFails) continue;
    return error(absl::StatusCode::kFailedPrecondition, "DEPENDENCY_FAILED",
                 absl::StrCat("scheduling.after: ", describe(dependency, job), ", which it never will"));
  }
  return absl::OkStatus();
}

std::string too_small_quota(const v1::JobSpec& spec, const SchedulingContext& context) {
  JobRecord record;
  *record.mutable_job()->mutable_spec() = spec;
  const QueueConfig queue = config_of(*context.queues, spec.scheduling().queue());
  const uint32_t wanted = request_of(record).least_devices();
  if (queue.quota_devices == 0 || wanted <= queue.quota_devices) return "";
  return absl::StrCat("resources.devices: ", wanted, " are wanted, queue '", queue.name, "' may have ",
                      queue.quota_devices, "; ask for at most that, or set resources.wait_for_capacity");
}

std::string too_few_nodes(const v1::JobSpec& spec, const cluster::Cluster& cluster) {
  const v1::SchedulingSpec& scheduling = spec.scheduling();
  if (scheduling.node_labels().empty() && scheduling.exclude_nodes().empty()) return "";
  JobRecord record;
  *record.mutable_job()->mutable_spec() = spec;
  const Request request = request_of(record);
  const cluster::Inventory inventory = cluster.inventory();
  FitCounter counter(inventory.domains, request.shapes.back());
  uint32_t devices = 0;
  for (const cluster::Inventory::Device& device : inventory.devices) {
    if (device.kind != request.kind || !allows(request, inventory.nodes[device.node])) continue;
    counter.add(device.domain);
    ++devices;
  }
  if (counter.fits()) return "";
  return absl::StrCat("scheduling.node_labels, exclude_nodes: they leave nodes with ", devices, " ",
                      kind_name(request.kind), " devices, too few for a job of ", request.least_devices(),
                      "; leave it more, or set resources.wait_for_capacity");
}

}  // namespace telar::server::jobs
