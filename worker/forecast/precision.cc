#include "worker/forecast/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "worker/forecast/forecast.h"

namespace telar::forecast {
namespace {

v1::JobSpec with_fp8(v1::JobSpec spec) {
  spec.mutable_precision()->set_compute(v1::FP8);
  return spec;
}

// Of any layout, if it is yet to be chosen.
std::vector<plan::SpecProblem> problems_of(v1::JobSpec spec, v1::ResourceSpec::Kind kind) {
  const bool any_layout = spec.parallel().auto_();
  if (any_layout) {
    spec.clear_parallel();
    spec.mutable_resources()->set_devices(1);
  }
  std::vector<plan::SpecProblem> problems = plan::resolve(spec, kind);
  if (any_layout) {  // Of a share of the batch that is not known yet.
    std::erase_if(problems, [](const plan::SpecProblem& one) { return one.field == "spec.batch.micro"; });
  }
  return problems;
}

bool is_of_precision(const plan::SpecProblem& problem) { return absl::StartsWith(problem.field, "spec.precision."); }

// Why a spec cannot be in FP8 on such devices; empty: it can.
std::string no_fp8(const v1::JobSpec& spec, const v1::Rates& rates) {
  if (rates.peak_flops_fp8() == 0) return fmt::format("{} multiplies no fp8", rates.name());
  if (spec.precision().recipe() == v1::PrecisionSpec::BLOCK && rates.products().fp8_block_share() == 0) {
    return fmt::format("{} has no products for recipe block", rates.name());
  }
  const std::vector<plan::SpecProblem> problems = problems_of(with_fp8(spec), rates.kind());
  return problems.empty() ? "" : fmt::format("{}: {}", problems[0].field, problems[0].description);
}

// What one precision has to say for itself.
struct Side {
  double seconds = 0;  // 0: no layout fits.
  bool fits = false;
};
Side side_of(const v1::Forecast& one) { return {one.step_seconds(), one.fits()}; }
Side side_of(const v1::LayoutSearch& found) { return found.best_size() == 0 ? Side() : side_of(found.best(0)); }

std::string lower_name(v1::Precision precision) { return absl::AsciiStrToLower(v1::Precision_Name(precision)); }

// Neither side fits better than the other.
bool pays(const Side& plain, const Side& eight) { return eight.seconds < (1 - kFp8Margin) * plain.seconds; }

v1::PrecisionChoice compare(v1::Precision other, const Side& plain, const Side& eight) {
  v1::PrecisionChoice choice;
  choice.set_plain_step_seconds(plain.seconds);
  choice.set_fp8_step_seconds(eight.seconds);
  const std::string name = lower_name(other);
  if (plain.fits != eight.fits) {
    choice.set_compute(eight.fits ? v1::FP8 : other);
    choice.set_reason(fmt::format("{} does not fit", eight.fits ? name : "fp8"));
    return choice;
  }
  choice.set_compute(pays(plain, eight) ? v1::FP8 : other);
  if (plain.seconds == 0 || eight.seconds == 0) {
    choice.set_reason("no layout fits in either precision");
    return choice;
  }
  const double shorter = 1 - eight.seconds / plain.seconds;
  std::string reason =
      fmt::format("a step takes {:.2f} ms in {} and {:.2f} ms in fp8, {:.1f} % {}", 1e3 * plain.seconds, name,
                  1e3 * eight.seconds, 100 * std::abs(shorter), shorter >= 0 ? "less" : "more");
  if (shorter > 0 && choice.compute() != v1::FP8) {
    reason += fmt::format(", but forecasts may be off by {:.0f} %", 100 * kFp8Margin);
  }
  choice.set_reason(std::move(reason));
  return choice;
}

// `of` makes the forecast of a spec without precision.compute auto.
template <typename Result>
absl::StatusOr<Result> in_better_precision(const v1::JobSpec& spec, const v1::ClusterShape& cluster,
                                           const std::function<absl::StatusOr<Result>(const v1::JobSpec&)>& of) {
  const v1::Rates& rates = cluster.rates();
  const v1::JobSpec plain_spec = without_fp8(spec, rates.kind());
  auto plain = of(plain_spec);
  if (!plain.ok()) return plain;
  const v1::Precision other = plain_spec.precision().compute();
  const Side plain_side = side_of(*plain);
  if (const std::string why = no_fp8(spec, rates); !why.empty()) {
    v1::PrecisionChoice& choice = *plain->mutable_precision();
    choice.set_compute(other);
    choice.set_reason("fp8 cannot be: " + why);
    choice.set_plain_step_seconds(plain_side.seconds);
    return plain;
  }
  auto eight = of(with_fp8(spec));
  if (!eight.ok()) return eight;
  v1::PrecisionChoice choice = compare(other, plain_side, side_of(*eight));
  auto& chosen = choice.compute() == v1::FP8 ? eight : plain;
  *chosen->mutable_precision() = std::move(choice);
  return std::move(chosen);
}

}  // namespace

v1::JobSpec without_fp8(v1::JobSpec spec, v1::ResourceSpec::Kind kind) {
  v1::PrecisionSpec plain;
  if (spec.precision().has_loss_scale()) *plain.mutable_loss_scale() = spec.precision().loss_scale();
  const auto of = spec.resources().kind() != v1::ResourceSpec::KIND_UNSPECIFIED ? spec.resources().kind() : kind;
  plain.set_compute(of == v1::ResourceSpec::GPU ? v1::BF16 : v1::FP32);
  *spec.mutable_precision() = plain;
  return spec;
}

std::vector<plan::SpecProblem> check_auto_precision(const v1::JobSpec& spec, v1::ResourceSpec::Kind kind) {
  std::vector<plan::SpecProblem> problems = problems_of(without_fp8(spec, kind), kind);
  if (std::any_of(problems.begin(), problems.end(), is_of_precision)) return problems;
  for (plan::SpecProblem& problem : problems_of(with_fp8(spec), kind)) {
    if (is_of_precision(problem)) problems.push_back(std::move(problem));
  }
  return problems;
}

absl::StatusOr<v1::Forecast> forecast_auto_precision(const v1::JobSpec& spec, const v1::ClusterShape& cluster) {
  return in_better_precision<v1::Forecast>(spec, cluster, [&](v1::JobSpec one) -> absl::StatusOr<v1::Forecast> {
    for (const plan::SpecProblem& problem : plan::resolve(one, cluster.rates().kind())) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", problem.field, problem.description));
    }
    return forecast(one, cluster);
  });
}

absl::StatusOr<v1::LayoutSearch> search_auto_precision(const v1::JobSpec& spec, const v1::ClusterShape& cluster,
                                                       const SearchOptions& options) {
  return in_better_precision<v1::LayoutSearch>(spec, cluster,
                                               [&](const v1::JobSpec& one) { return search(one, cluster, options); });
}

}  // namespace telar::forecast
