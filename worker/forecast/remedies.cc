#include "worker/forecast/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "worker/forecast/advice.h"
#include "worker/forecast/forecast.h"
#include "worker/plan/resolve.h"

namespace telar::forecast {
namespace {

struct Knob {
  std::string field, setting;
  std::function<void(v1::JobSpec&)> turn;
};

// What follows from other fields is to be found anew.
void forget_derived(v1::ParallelSpec& parallel) {
  parallel.clear_shard();
  parallel.clear_prefetch();
  parallel.clear_stage_layers();
}

std::vector<Knob> knobs(const v1::JobSpec& spec) {
  std::vector<Knob> all;
  const v1::ParallelSpec& now = spec.parallel();
  for (uint32_t stage = now.zero_stage() + 1; stage <= 3 && now.data() > 1; ++stage) {
    all.push_back({"parallel.zero_stage", std::to_string(stage), [stage](v1::JobSpec& changed) {
                     forget_derived(*changed.mutable_parallel());
                     changed.mutable_parallel()->set_zero_stage(stage);
                   }});
  }
  for (const auto& [mode, name] : {std::pair{v1::MemorySpec::SELECTIVE, "selective"}, {v1::MemorySpec::FULL, "full"}}) {
    if (mode <= spec.memory().recompute()) continue;
    all.push_back({"memory.recompute", name,
                   [mode = mode](v1::JobSpec& changed) { changed.mutable_memory()->set_recompute(mode); }});
  }
  if (spec.batch().micro() % 2 == 0) {
    const uint32_t half = spec.batch().micro() / 2;
    all.push_back({"batch.micro", std::to_string(half),
                   [half](v1::JobSpec& changed) { changed.mutable_batch()->set_micro(half); }});
  }
  if (now.data() % 2 == 0) {
    all.push_back(
        {"parallel.tensor", fmt::format("{} (data {})", 2 * now.tensor(), now.data() / 2), [](v1::JobSpec& changed) {
           v1::ParallelSpec& parallel = *changed.mutable_parallel();
           forget_derived(parallel);
           parallel.set_tensor(2 * parallel.tensor());
           parallel.set_data(parallel.data() / 2);
           parallel.clear_overlap_tensor();
         }});
    all.push_back({"parallel.pipeline", fmt::format("{} (data {})", 2 * now.pipeline(), now.data() / 2),
                   [](v1::JobSpec& changed) {
                     v1::ParallelSpec& parallel = *changed.mutable_parallel();
                     forget_derived(parallel);
                     parallel.set_pipeline(2 * parallel.pipeline());
                     parallel.set_data(parallel.data() / 2);
                   }});
  }
  if (!spec.memory().offload_activations()) {
    all.push_back({"memory.offload_activations", "true",
                   [](v1::JobSpec& changed) { changed.mutable_memory()->set_offload_activations(true); }});
  }
  return all;
}

double most_bytes(const v1::Forecast& forecast) {
  uint64_t most = 0;
  for (const v1::RankForecast& rank : forecast.ranks()) most = std::max(most, rank.total_bytes());
  return static_cast<double>(most);
}

}  // namespace

std::vector<v1::Advice> remedies(const v1::Forecast& now, const v1::ClusterShape& cluster) {
  std::vector<std::pair<double, v1::Advice>> found;
  for (const Knob& knob : knobs(now.spec())) {
    v1::JobSpec spec = now.spec();
    knob.turn(spec);
    if (spec.parallel().tensor() > cluster.domain() || !plan::resolve(spec, cluster.rates().kind()).empty()) continue;
    const auto then = forecast(spec, cluster);
    if (!then.ok()) continue;
    const double saved = most_bytes(now) - most_bytes(*then);
    if (saved <= 0) continue;
    v1::Advice advice;
    advice.set_level(then->fits() ? v1::Advice::NOTE : v1::Advice::WARNING);
    advice.set_field(knob.field);
    advice.set_text(fmt::format("{} saves {:.1f} GiB ({:.1f} GiB then, which {}), and a step takes {:+.0f} %",
                                knob.setting, saved / kGiB, most_bytes(*then) / kGiB,
                                then->fits() ? "fits" : "is still too much",
                                100 * (then->step_seconds() / now.step_seconds() - 1)));
    found.emplace_back(saved, std::move(advice));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<v1::Advice> advice;
  for (auto& [saved, one] : found) advice.push_back(std::move(one));
  return advice;
}

}  // namespace telar::forecast
