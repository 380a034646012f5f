#include "worker/forecast/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/forecast/estimate.h"
#include "worker/forecast/forecast.h"
#include "worker/plan/resolve.h"

namespace telar::forecast {
namespace {

constexpr uint32_t kMostPipeline = 128;
constexpr uint32_t kMostVirtual = 8;
constexpr uint32_t kMostMicro = 512;        // Sequences of a micro-batch.
constexpr uint64_t kMostTokens = 1u << 20;  // Of a micro-batch.
constexpr size_t kMostTries = 4;            // Forecasts for each that is wanted.
constexpr double kRoom = 1.05;              // An estimate may be so much above what is there: exact bytes decide.

struct Candidate {
  v1::JobSpec spec;  // Resolved.
  Estimate estimate;
};

std::vector<uint32_t> divisors(uint32_t of, uint32_t at_most) {
  std::vector<uint32_t> all;
  for (uint32_t d = 1; d <= std::min(of, at_most); ++d) {
    if (of % d == 0) all.push_back(d);
  }
  return all;
}

std::string describe(const v1::JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  return fmt::format("tensor {} pipeline {} data {}", parallel.tensor(), parallel.pipeline(), parallel.data());
}

class Search {
 public:
  Search(const v1::JobSpec& spec, const v1::ClusterShape& cluster, const SearchOptions& options)
      : asked_(spec), cluster_(cluster), options_(options), estimator_(cluster) {
    asked_.mutable_parallel()->set_auto_(false);
  }

  absl::StatusOr<v1::LayoutSearch> run() {
    if (absl::Status status = check(); !status.ok()) return status;
    if (absl::Status status = enumerate(); !status.ok()) return status;
    result_.set_candidates(looked_at_);
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.estimate.seconds < b.estimate.seconds; });
    if (absl::Status status = decide(); !status.ok()) return status;
    explain();
    for (auto& [reason, dropped] : dropped_) *result_.add_dropped() = dropped;
    return std::move(result_);
  }

 private:
  // What is wrong whatever the layout.
  absl::Status check() {
    v1::JobSpec plain = asked_;
    plain.clear_parallel();
    plain.mutable_resources()->set_devices(1);
    std::string text;
    for (const plan::SpecProblem& problem : plan::resolve(plain, cluster_.rates().kind())) {
      if (problem.field == "spec.batch.micro") continue;  // Of a share of the batch that is not known yet.
      absl::StrAppend(&text, text.empty() ? "" : "; ", problem.field, ": ", problem.description);
    }
    if (!text.empty()) return absl::InvalidArgumentError(text);
    model_ = plain.model();
    return absl::OkStatus();
  }

  void drop(const std::string& reason, const v1::JobSpec& spec) {
    v1::DroppedLayouts& dropped = dropped_[reason];
    if (dropped.count() == 0) {
      dropped.set_reason(reason);
      dropped.set_example(describe(spec));
    }
    dropped.set_count(dropped.count() + 1);
  }

  absl::Status enumerate() {
    const uint32_t devices = asked_.resources().devices();
    for (const uint32_t tensor : divisors(devices, devices)) {
      if (asked_.parallel().tensor() > 0 && tensor != asked_.parallel().tensor()) continue;
      for (const uint32_t pipeline : divisors(devices / tensor, kMostPipeline)) {
        if (asked_.parallel().pipeline() > 0 && pipeline != asked_.parallel().pipeline()) continue;
        v1::JobSpec spec = asked_;
        v1::ParallelSpec& parallel = *spec.mutable_parallel();
        parallel.set_tensor(tensor);
        parallel.set_pipeline(pipeline);
        parallel.set_data(devices / tensor / pipeline);
        if (asked_.parallel().data() > 0 && parallel.data() != asked_.parallel().data()) continue;
        const std::string reason = no_degrees(spec);
        if (!reason.empty()) {
          ++looked_at_;
          drop(reason, spec);
          continue;
        }
        if (absl::Status status = schedules(spec); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  // Why the degrees do not go with the model, the batch or the cluster; empty: they do.
  std::string no_degrees(const v1::JobSpec& spec) const {
    const v1::ParallelSpec& parallel = spec.parallel();
    const uint32_t tensor = parallel.tensor();
    if (tensor > cluster_.domain()) return "parallel.tensor is wider than an NVLink domain";
    if (cluster_.domain() % tensor != 0) return "parallel.tensor does not divide an NVLink domain";
    if (model_.heads() % tensor != 0 || (model_.kv_heads() % tensor != 0 && tensor % model_.kv_heads() != 0)) {
      return "parallel.tensor does not split the heads";
    }
    if (spec.batch().sequence_length() % tensor != 0) return "parallel.tensor does not divide the sequence";
    if (parallel.pipeline() > model_.layers()) return "more pipeline ranks than layers";
    if (spec.batch().global() % parallel.data() != 0) return "parallel.data does not divide batch.global";
    return "";
  }

  absl::Status schedules(const v1::JobSpec& degrees) {
    std::vector<std::pair<std::string, uint32_t>> all;
    if (degrees.parallel().pipeline() == 1) {
      all = {{"1f1b", 1}};
    } else {
      all = {{"1f1b", 1}, {"zb-h1", 1}, {"zb-v", 2}};
      for (uint32_t v = 2; v <= kMostVirtual; ++v) all.emplace_back("interleaved", v);
    }
    const v1::ParallelSpec& asked = asked_.parallel();
    for (const auto& [name, stages] : all) {
      if (degrees.parallel().pipeline() > 1) {
        if (!asked.schedule().empty() && asked.schedule() != name) continue;
        if (asked.virtual_stages() > 0 && asked.virtual_stages() != stages) continue;
      }
      if (degrees.parallel().pipeline() * stages > model_.layers()) continue;
      v1::JobSpec spec = degrees;
      spec.mutable_parallel()->set_schedule(name);
      spec.mutable_parallel()->set_virtual_stages(stages);
      if (absl::Status status = micro_batches(spec); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status micro_batches(const v1::JobSpec& scheduled) {
    const uint32_t share = scheduled.batch().global() / scheduled.parallel().data();
    for (const uint32_t micro : divisors(share, kMostMicro)) {
      if (asked_.batch().micro() > 0 && micro != asked_.batch().micro()) continue;
      if (uint64_t{micro} * scheduled.batch().sequence_length() > kMostTokens && asked_.batch().micro() == 0) break;
      for (const auto recompute : {v1::MemorySpec::NONE, v1::MemorySpec::SELECTIVE, v1::MemorySpec::FULL}) {
        const auto wanted = asked_.memory().recompute();
        if (wanted != v1::MemorySpec::RECOMPUTE_UNSPECIFIED && wanted != recompute) continue;
        v1::JobSpec spec = scheduled;
        spec.mutable_batch()->set_micro(micro);
        spec.mutable_memory()->set_recompute(recompute);
        if (absl::Status status = zero_stages(spec); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status zero_stages(const v1::JobSpec& without) {
    const bool replicas = without.parallel().data() > 1;
    for (uint32_t stage = replicas ? 1 : 0; stage <= (replicas ? 3u : 0u); ++stage) {
      const uint32_t wanted = asked_.parallel().zero_stage();
      if (replicas && wanted > 0 && wanted != stage) continue;
      v1::JobSpec spec = without;
      spec.mutable_parallel()->set_zero_stage(stage);
      if (absl::Status status = consider(std::move(spec)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status consider(v1::JobSpec spec) {
    ++looked_at_;
    const std::vector<plan::SpecProblem> problems = plan::resolve(spec, cluster_.rates().kind());
    if (!problems.empty()) {
      drop(absl::StrCat(problems[0].field, " does not work"), spec);
      return absl::OkStatus();
    }
    const auto estimate = estimator_.estimate(spec);
    if (!estimate.ok()) return estimate.status();
    const double room = static_cast<double>(cluster_.rates().memory_bytes() - cluster_.rates().reserved_bytes());
    if (estimate->bytes > kRoom * room) {
      drop("more memory than a device has", spec);
      return absl::OkStatus();
    }
    candidates_.push_back({std::move(spec), *estimate});
    return absl::OkStatus();
  }

  // Forecasts the most promising ones, until enough fit.
  absl::Status decide() {
    std::vector<v1::Forecast> fitting;
    size_t at = 0;
    // Estimates of bytes may be off, but not of all that are near the top.
    const size_t most = std::min(candidates_.size(), kMostTries * options_.exact);
    for (; at < most && fitting.size() < options_.exact; ++at) {
      auto exact = forecast(candidates_[at].spec, cluster_);
      if (!exact.ok()) return exact.status();
      if (exact->fits()) {
        fitting.push_back(*std::move(exact));
      } else {
        drop("more memory than a device has", candidates_[at].spec);
      }
    }
    for (; at < candidates_.size(); ++at) drop("slower, by the estimate", candidates_[at].spec);
    std::stable_sort(fitting.begin(), fitting.end(),
                     [](const v1::Forecast& a, const v1::Forecast& b) { return a.step_seconds() < b.step_seconds(); });
    for (size_t i = 0; i < fitting.size(); ++i) {
      if (i < options_.best) {
        *result_.add_best() = std::move(fitting[i]);
      } else {
        drop("slower, by the forecast", fitting[i].spec());
      }
    }
    return absl::OkStatus();
  }

  // Means over the pipeline ranks, by what they are called.
  static std::map<std::string, double> shares(const v1::Forecast& forecast) {
    std::map<std::string, double> sums;
    for (const v1::RankForecast& rank : forecast.ranks()) {
      sums["products and other kernels"] += rank.forward() + rank.backward() + rank.other();
      sums["recomputation"] += rank.recompute();
      sums["the optimizer"] += rank.optimizer();
      sums["gradients and weights under way"] += rank.exposed_gradients();
      sums["tensor-parallel transfers"] += rank.exposed_tensor();
      sums["waiting in the pipeline"] += rank.exposed_pipeline();
    }
    for (auto& [name, seconds] : sums) seconds /= forecast.ranks_size();
    return sums;
  }

  void explain() {
    if (result_.best_size() == 0) return;
    const std::map<std::string, double> first = shares(result_.best(0));
    const double step = result_.best(0).step_seconds();
    std::string text = "fastest of those that fit;";
    for (const auto& [name, seconds] : first) {
      if (seconds > 0.001 * step) absl::StrAppend(&text, fmt::format(" {:.1f} % {},", 100 * seconds / step, name));
    }
    text.back() = '.';
    result_.add_reasons(text);
    for (int i = 1; i < result_.best_size(); ++i) {
      std::pair<std::string, double> most{"", 0};
      for (const auto& [name, seconds] : shares(result_.best(i))) {
        if (seconds - first.at(name) > most.second) most = {name, seconds - first.at(name)};
      }
      result_.add_reasons(
          fmt::format("{:.1f} % longer than the first{}", 100 * (result_.best(i).step_seconds() / step - 1),
                      most.first.empty()
                          ? ""
                          : fmt::format(": {:.1f} % of its step more for {}", 100 * most.second / step, most.first)));
    }
  }

  v1::JobSpec asked_;
  v1::ModelSpec model_;  // Complete.
  const v1::ClusterShape& cluster_;
  const SearchOptions options_;
  Estimator estimator_;
  uint64_t looked_at_ = 0;
  std::vector<Candidate> candidates_;
  std::map<std::string, v1::DroppedLayouts> dropped_;
  v1::LayoutSearch result_;
};

}  // namespace

absl::StatusOr<v1::LayoutSearch> search(const v1::JobSpec& spec, const v1::ClusterShape& cluster,
                                        const SearchOptions& options) {
  return Search(spec, cluster, options).run();
}

}  // namespace telar::forecast
