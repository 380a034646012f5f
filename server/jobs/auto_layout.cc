#include "server/jobs/auto_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "worker/forecast/forecast.h"
#include "worker/forecast/precision.h"
#include "worker/forecast/rates.h"
#include "worker/forecast/search.h"

namespace telar::server::jobs {
namespace {

// The coordinator wants the best one; some more are forecast, as estimates differ from forecasts by some percent.
constexpr forecast::SearchOptions kSearch{.best = 1, .exact = 6};

absl::Status no_rates(const std::string& text) {
  return error(absl::StatusCode::kFailedPrecondition, "NO_RATES",
               absl::StrCat("parallel: auto: ", text, "; `telar plan` finds a layout for a cluster file with rates"));
}

bool wants_precision(const v1::JobSpec& spec) { return spec.precision().compute() == v1::AUTO; }

// Of jobs that do not say.
v1::ResourceSpec::Kind default_kind(const std::vector<v1::Node>& nodes) {
  const auto is_gpu = [](const auto& one) { return one.device().kind() == v1::ResourceSpec::GPU; };
  const bool gpus = std::any_of(nodes.begin(), nodes.end(), [&](const v1::Node& node) {
    return std::any_of(node.devices().begin(), node.devices().end(), is_gpu);
  });
  return gpus ? v1::ResourceSpec::GPU : v1::ResourceSpec::CPU;
}

// Whether the job may wait for more devices than there are is not decided here.
v1::ClusterShape with_room(v1::ClusterShape cluster, uint32_t devices) {
  if (devices > cluster.nodes() * cluster.devices()) {
    cluster.set_nodes((devices + cluster.devices() - 1) / cluster.devices());
  }
  return cluster;
}

std::string dropped(const v1::LayoutSearch& found) {
  std::string text;
  for (const v1::DroppedLayouts& one : found.dropped()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", one.count(), " for: ", one.reason());
  }
  return text;
}

}  // namespace

absl::StatusOr<v1::ClusterShape> cluster_shape(const std::vector<v1::Node>& nodes, v1::ResourceSpec::Kind kind) {
  if (kind == v1::ResourceSpec::KIND_UNSPECIFIED) kind = default_kind(nodes);
  uint32_t all = 0, most = 0, widest = 0;
  uint64_t memory = 0;
  std::string model;
  for (const v1::Node& node : nodes) {
    uint32_t here = 0;
    std::map<uint32_t, uint32_t> domains;
    for (const auto& one : node.devices()) {
      if (one.device().kind() != kind) continue;
      ++here;
      widest = std::max(widest, ++domains[one.device().nvlink_domain()]);
      const uint64_t bytes = one.device().memory_bytes();
      if (bytes > 0 && (memory == 0 || bytes < memory)) memory = bytes;
      if (model.empty()) model = one.device().model();
    }
    all += here;
    most = std::max(most, here);
  }
  if (all == 0) return no_rates("the cluster has no device of the kind");
  auto rates = forecast::rates_of_model(kind == v1::ResourceSpec::CPU ? "cpu" : model);
  if (!rates.ok()) return no_rates(std::string(rates.status().message()));
  if (memory > rates->reserved_bytes()) rates->set_memory_bytes(memory);
  v1::ClusterShape cluster;
  cluster.set_nodes((all + most - 1) / most);
  cluster.set_devices(most);
  cluster.set_domain(widest);
  *cluster.mutable_rates() = *std::move(rates);
  return cluster;
}

namespace {

std::string told(const v1::PrecisionChoice& choice) {
  return absl::StrCat("precision: auto chose ", absl::AsciiStrToLower(v1::Precision_Name(choice.compute())), ": ",
                      choice.reason());
}

// In place of its auto; what goes with FP8 only goes where it is not chosen.
void set_precision(v1::JobSpec& spec, const v1::PrecisionChoice& choice, v1::ResourceSpec::Kind kind) {
  if (choice.compute() == v1::FP8) {
    spec.mutable_precision()->set_compute(v1::FP8);
  } else {
    spec = forecast::without_fp8(std::move(spec), kind);
  }
}

absl::Status check_precision(const v1::JobSpec& spec, v1::ResourceSpec::Kind kind) {
  std::vector<Violation> found;
  for (const plan::SpecProblem& problem : forecast::check_auto_precision(spec, kind)) {
    found.push_back({problem.field, problem.description});
  }
  return found.empty() ? absl::OkStatus() : invalid(found);
}

absl::StatusOr<std::string> choose_precision(v1::JobSpec& spec, const v1::ClusterShape& cluster) {
  const auto chosen = forecast::forecast_auto_precision(spec, with_room(cluster, spec.resources().devices()));
  if (!chosen.ok()) {
    return absl::Status(chosen.status().code(), absl::StrCat("spec.precision.compute: ", chosen.status().message()));
  }
  set_precision(spec, chosen->precision(), cluster.rates().kind());
  return told(chosen->precision());
}

absl::StatusOr<std::string> choose_layout(v1::JobSpec& spec, const v1::ClusterShape& cluster) {
  v1::JobSpec asked = spec;
  if (asked.resources().devices() == 0) asked.mutable_resources()->set_devices(1);
  const v1::ClusterShape large = with_room(cluster, asked.resources().devices());
  const auto found = wants_precision(spec) ? forecast::search_auto_precision(asked, large, kSearch)
                                           : forecast::search(asked, large, kSearch);
  if (!found.ok())
    return absl::Status(found.status().code(), absl::StrCat("spec.parallel.auto: ", found.status().message()));
  if (found->best_size() == 0) {
    return invalid({{"spec.parallel.auto", absl::StrCat("none of ", found->candidates(), " layouts fits (",
                                                        dropped(*found), "); see telar plan")}});
  }
  const v1::Forecast& best = found->best(0);
  const v1::ParallelSpec& parallel = best.spec().parallel();
  *spec.mutable_parallel() = parallel;
  spec.mutable_batch()->set_micro(best.spec().batch().micro());
  spec.mutable_memory()->set_recompute(best.spec().memory().recompute());
  std::string precision;
  if (found->has_precision()) {
    set_precision(spec, found->precision(), cluster.rates().kind());
    precision = absl::StrCat(told(found->precision()), "; ");
  }
  return absl::StrCat(precision, "parallel: auto chose tensor ", parallel.tensor(), ", pipeline ", parallel.pipeline(),
                      " (", parallel.schedule(), "), data ", parallel.data(), ", zero_stage ", parallel.zero_stage(),
                      ", micro ", best.spec().batch().micro(), ", recompute ",
                      v1::MemorySpec::Recompute_Name(best.spec().memory().recompute()), " of ", found->candidates(),
                      " layouts: ", found->reasons(0));
}

}  // namespace

bool has_auto(const v1::JobSpec& spec) { return spec.parallel().auto_() || wants_precision(spec); }

absl::StatusOr<std::string> choose_autos(v1::JobSpec& spec, const std::vector<v1::Node>& nodes) {
  const auto asked = spec.resources().kind();
  const auto kind = asked == v1::ResourceSpec::KIND_UNSPECIFIED ? default_kind(nodes) : asked;
  if (wants_precision(spec)) {
    if (absl::Status status = check_precision(spec, kind); !status.ok()) return status;
  }
  const auto cluster = cluster_shape(nodes, kind);
  if (spec.parallel().auto_()) return cluster.ok() ? choose_layout(spec, *cluster) : cluster.status();
  if (cluster.ok()) return choose_precision(spec, *cluster);
  spec = forecast::without_fp8(std::move(spec), kind);
  v1::PrecisionChoice choice;
  choice.set_compute(spec.precision().compute());
  choice.set_reason("no rates are known of the cluster's devices, so nothing says that fp8 pays");
  return told(choice);
}

}  // namespace telar::server::jobs
