#include "server/jobs/admission.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/jobs/elastic.h"
#include "worker/plan/paths.h"
#include "worker/plan/resolve.h"

namespace telar::server::jobs {
namespace {

constexpr size_t kMostRequestId = 128;

void check_request(const v1::CreateJobRequest& request, std::vector<Violation>& found) {
  if (project_of(request.parent()).empty()) {
    found.push_back({"parent", absl::StrCat("'", request.parent(),
                                            "' must be 'projects/{project}', or empty for "
                                            "'projects/default'")});
  }
  if (request.request_id().size() > kMostRequestId) {
    found.push_back({"request_id", absl::StrCat(request.request_id().size(), " characters; at most ", kMostRequestId,
                                                " are kept, a UUID has 36")});
  }
}

void check_name(const std::string& name, std::vector<Violation>& found) {
  const bool told = std::any_of(found.begin(), found.end(),
                                [](const Violation& violation) { return violation.field == "spec.name"; });
  if (told || label(name)) return;
  found.push_back({"spec.name", absl::StrCat("'", name,
                                             "' must be 1 to 63 of a-z, 0-9 and '-', and begin and end "
                                             "with a letter or digit")});
}

// Where a tensor-parallel group must be.
std::string closeness(v1::ResourceSpec::Kind kind) { return kind == v1::ResourceSpec::GPU ? "NVLink domain" : "node"; }

// What this cluster could not hold even if nothing ran on it; empty: it could.
std::string too_few_devices(const v1::ResourceSpec& resources, const cluster::Cluster& cluster) {
  const uint32_t registered = cluster.count(resources.kind()).registered;
  if (resources.devices() <= registered) return "";
  return absl::StrCat("resources.devices: ", resources.devices(), " ", kind_name(resources.kind()),
                      resources.devices() == 1 ? " device is" : " devices are", " wanted, the cluster has ", registered,
                      "; ask for at most that, or set resources.wait_for_capacity");
}

std::string too_little_room(const v1::JobSpec& spec, const cluster::Cluster& cluster) {
  const uint32_t tensor = spec.parallel().tensor(), devices = spec.resources().devices();
  if (tensor == 1 || spec.parallel().tensor_across_nodes()) return "";
  const v1::ResourceSpec::Kind kind = spec.resources().kind();
  const cluster::Cluster::Room room = cluster.room(kind, tensor);
  if (room.widest == 0) return "";  // No device at all; said already.
  if (tensor > room.widest) {
    uint32_t fits = room.widest;  // What divides the heads by `tensor` divides them by its divisors.
    while (tensor % fits != 0) --fits;
    return absl::StrCat("parallel.tensor: ", tensor, " ranks need one ", closeness(kind), ", the largest has ",
                        room.widest, room.widest == 1 ? " device" : " devices", " (node ", room.node, "); use ", fits,
                        ", or set parallel.tensor_across_nodes");
  }
  const uint32_t wanted = devices / tensor;
  if (room.groups >= wanted) return "";
  return absl::StrCat("parallel.tensor: ", devices, " devices are wanted as ", wanted, " groups of ", tensor,
                      ", each inside one ", closeness(kind), "; the cluster has room for ", room.groups,
                      "; ask for at most that, or set parallel.tensor_across_nodes");
}

void check_paths(const v1::JobSpec& spec, const Roots& roots, std::vector<Violation>& found) {
  for (const plan::SpecPath& one : plan::paths_of(spec)) {
    std::string problem = roots.problem(one.path);
    if (!problem.empty()) found.push_back({absl::StrCat("spec.", one.field), std::move(problem)});
  }
}

}  // namespace

void check_spec(v1::CreateJobRequest& request, const cluster::Cluster& cluster, const SchedulingContext& context,
                std::vector<Violation>& found) {
  check_request(request, found);
  if (!request.has_spec()) {
    found.push_back({"spec", "is missing"});
    return;
  }
  v1::JobSpec& spec = *request.mutable_spec();
  const bool gpus = cluster.count(v1::ResourceSpec::GPU).registered > 0;
  for (const plan::SpecProblem& problem : plan::resolve(spec, gpus ? v1::ResourceSpec::GPU : v1::ResourceSpec::CPU)) {
    found.push_back({problem.field, problem.description});
  }
  check_name(spec.name(), found);
  check_paths(spec, *context.roots, found);
  check_scheduling(spec, project_of(request.parent()), context, found);
}

absl::Status check_room(const v1::JobSpec& spec, const cluster::Cluster& cluster, const SchedulingContext& context) {
  if (spec.resources().wait_for_capacity()) return absl::OkStatus();
  const v1::JobSpec least = least_shape(spec);
  const std::pair<const char*, std::string> shortages[] = {
      {"INSUFFICIENT_DEVICES", too_few_devices(least.resources(), cluster)},
      {"INSUFFICIENT_ROOM", too_little_room(least, cluster)},
      {"INSUFFICIENT_NODES", too_few_nodes(spec, cluster)},
      {"QUOTA_EXCEEDED", too_small_quota(spec, context)}};
  std::string reason, text;
  for (const auto& [name, shortage] : shortages) {
    if (shortage.empty()) continue;
    if (reason.empty()) reason = name;
    absl::StrAppend(&text, text.empty() ? "" : "; ", shortage);
  }
  return text.empty() ? absl::OkStatus() : error(absl::StatusCode::kFailedPrecondition, reason, text);
}

absl::Status admit(v1::CreateJobRequest& request, const cluster::Cluster& cluster, const SchedulingContext& context) {
  std::vector<Violation> found;
  if (request.spec().has_array()) found.push_back({"spec.array", "makes many jobs of one spec: call CreateJobArray"});
  check_spec(request, cluster, context, found);
  if (!found.empty()) return invalid(found);
  if (absl::Status status = check_dependencies(request.spec(), context); !status.ok()) return status;
  return check_room(request.spec(), cluster, context);
}

bool label(const std::string& text) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !text.empty() && text.size() <= 63 && std::all_of(text.begin(), text.end(), allowed) && text.front() != '-' &&
         text.back() != '-';
}

std::string project_of(const std::string& parent) {
  if (parent.empty()) return "projects/default";
  constexpr size_t kPrefix = 9;  // "projects/"
  if (parent.compare(0, kPrefix, "projects/") != 0 || !label(parent.substr(kPrefix))) return "";
  return parent;
}

std::string kind_name(v1::ResourceSpec::Kind kind) { return v1::ResourceSpec::Kind_Name(kind); }

}  // namespace telar::server::jobs
