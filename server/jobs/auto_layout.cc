#include "server/jobs/auto_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
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

std::string dropped(const v1::LayoutSearch& found) {
  std::string text;
  for (const v1::DroppedLayouts& one : found.dropped()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", one.count(), " for: ", one.reason());
  }
  return text;
}

}  // namespace

absl::StatusOr<v1::ClusterShape> cluster_shape(const std::vector<v1::Node>& nodes, v1::ResourceSpec::Kind kind) {
  const auto is_gpu = [](const auto& one) { return one.device().kind() == v1::ResourceSpec::GPU; };
  if (kind == v1::ResourceSpec::KIND_UNSPECIFIED) {
    const bool gpus = std::any_of(nodes.begin(), nodes.end(), [&](const v1::Node& node) {
      return std::any_of(node.devices().begin(), node.devices().end(), is_gpu);
    });
    kind = gpus ? v1::ResourceSpec::GPU : v1::ResourceSpec::CPU;
  }
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

absl::StatusOr<std::string> choose_layout(v1::JobSpec& spec, const v1::ClusterShape& cluster) {
  v1::JobSpec asked = spec;
  if (asked.resources().devices() == 0) asked.mutable_resources()->set_devices(1);
  const uint32_t there = cluster.nodes() * cluster.devices();
  v1::ClusterShape large = cluster;  // Whether the job may wait for more is not decided here.
  if (asked.resources().devices() > there) {
    large.set_nodes((asked.resources().devices() + cluster.devices() - 1) / cluster.devices());
  }
  const auto found = forecast::search(asked, large, kSearch);
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
  return absl::StrCat("parallel: auto chose tensor ", parallel.tensor(), ", pipeline ", parallel.pipeline(), " (",
                      parallel.schedule(), "), data ", parallel.data(), ", zero_stage ", parallel.zero_stage(),
                      ", micro ", best.spec().batch().micro(), ", recompute ",
                      v1::MemorySpec::Recompute_Name(best.spec().memory().recompute()), " of ", found->candidates(),
                      " layouts: ", found->reasons(0));
}

}  // namespace telar::server::jobs
