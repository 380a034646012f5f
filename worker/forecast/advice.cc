#include "worker/forecast/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace telar::forecast {
namespace {

constexpr double kMuch = 0.10;  // Of a step.
constexpr double kNearlyFull = 0.95;
constexpr int64_t kFewTokens = 512;  // RunShape::piece_rows: below it tensor-parallel transfers are not cut.

class Adviser {
 public:
  Adviser(const v1::Forecast& forecast, const v1::ClusterShape& cluster)
      : forecast_(forecast), spec_(forecast.spec()), parallel_(spec_.parallel()), cluster_(cluster) {}

  std::vector<v1::Advice> advise() {
    memory();
    tensor();
    products();
    pipeline();
    replicas();
    rates();
    return std::move(found_);
  }

 private:
  template <typename... Args>
  void add(v1::Advice::Level level, const std::string& field, fmt::format_string<Args...> text, Args&&... args) {
    v1::Advice advice;
    advice.set_level(level);
    advice.set_field(field);
    advice.set_text(fmt::format(text, std::forward<Args>(args)...));
    found_.push_back(std::move(advice));
  }

  void memory() {
    const auto fullest = std::max_element(
        forecast_.ranks().begin(), forecast_.ranks().end(),
        [](const v1::RankForecast& a, const v1::RankForecast& b) { return a.total_bytes() < b.total_bytes(); });
    const double used = static_cast<double>(fullest->total_bytes()),
                 room = static_cast<double>(forecast_.device_bytes());
    if (used > room) {
      add(v1::Advice::NEVER, "memory", "pipeline rank {} needs {:.1f} GiB, {:.1f} GiB more than the {:.1f} GiB of {}",
          fullest->pipeline_rank(), used / kGiB, (used - room) / kGiB, room / kGiB, cluster_.rates().name());
    } else if (used > kNearlyFull * room) {
      add(v1::Advice::WARNING, "memory", "pipeline rank {} uses {:.0f} % of the {:.1f} GiB that plans may have",
          fullest->pipeline_rank(), 100 * used / room, room / kGiB);
    }
  }

  void tensor() {
    const uint32_t tensor = parallel_.tensor();
    if (tensor > cluster_.domain()) {
      add(v1::Advice::NEVER, "parallel.tensor", "{} ranks do not fit in an NVLink domain of {}; use {} at most", tensor,
          cluster_.domain(), cluster_.domain());
    } else if (cluster_.domain() % tensor != 0) {
      add(v1::Advice::WARNING, "parallel.tensor",
          "{} does not divide the NVLink domain's {} devices: {} of each stay "
          "without work",
          tensor, cluster_.domain(), cluster_.domain() % tensor);
    }
    const double exposed = worst(&v1::RankForecast::exposed_tensor);
    if (exposed > kMuch) {
      add(v1::Advice::WARNING, "parallel.tensor",
          "{:.0f} % of a step nothing computes while activations travel; use a "
          "smaller degree, or more tokens a micro-batch",
          100 * exposed);
    }
    const int64_t tokens = micro_tokens() / tensor;
    if (tensor > 1 && tokens < kFewTokens) {
      add(v1::Advice::WARNING, "batch.micro",
          "{} tokens a tensor rank: below {} its transfers are not cut to run beside "
          "products; a micro-batch of {} sequences would be",
          tokens, kFewTokens,
          (kFewTokens * tensor + spec_.batch().sequence_length() - 1) / spec_.batch().sequence_length());
    }
  }

  // The narrowest product of a layer should have a tile for each unit of the device.
  void products() {
    const v1::ProductRates& rates = cluster_.rates().products();
    const v1::ModelSpec& model = spec_.model();
    const double kv = 2.0 * std::max(1.0, static_cast<double>(model.kv_heads()) / parallel_.tensor());
    const double qkv = (static_cast<double>(model.heads()) / parallel_.tensor() + kv) * model.head_dim();
    const double narrow =
        std::min({static_cast<double>(model.hidden()), qkv, static_cast<double>(model.ffn()) / parallel_.tensor()});
    const double tiles =
        std::ceil(static_cast<double>(micro_tokens()) / rates.tile_rows()) * std::ceil(narrow / rates.tile_columns());
    if (tiles < rates.units()) {
      add(v1::Advice::WARNING, "batch.micro",
          "{} tokens a micro-batch make {:.0f} tiles of a product with {:.0f} columns, "
          "fewer than the {} units of {}: most of the device waits; use more sequences a micro-batch{}",
          micro_tokens(), tiles, narrow, rates.units(), cluster_.rates().name(),
          parallel_.tensor() > 1 ? ", or a smaller parallel.tensor" : "");
    }
    if (parallel_.tensor() > 1 && narrow < 2.0 * rates.tile_columns()) {
      add(v1::Advice::WARNING, "parallel.tensor",
          "a rank's narrowest product has {:.0f} columns, fewer than two tiles of {}", narrow, rates.tile_columns());
    }
  }

  void pipeline() {
    if (parallel_.pipeline() == 1) return;
    const uint32_t micro_batches = spec_.batch().global() / parallel_.data() / spec_.batch().micro();
    if (forecast_.bubble() > kMuch) {
      add(v1::Advice::WARNING, "parallel.schedule",
          "ranks wait {:.0f} % of a step in the pipeline ({} micro-batches over {} "
          "ranks); use {}",
          100 * forecast_.bubble(), micro_batches, parallel_.pipeline(),
          spec_.batch().micro() > 1 ? "a smaller batch.micro, virtual_stages, or schedule zb-v"
                                    : "virtual_stages, schedule zb-v, or fewer replicas");
    }
    double most = 0, least = 1e300;
    for (const v1::RankForecast& rank : forecast_.ranks()) {
      const double work = rank.forward() + rank.backward() + rank.recompute();
      most = std::max(most, work);
      least = std::min(least, work);
    }
    if (most > least * 1.15) {
      add(v1::Advice::NOTE, "parallel.stage_layers",
          "the longest stage works {:.0f} % more than the shortest; all wait for it", 100 * (most / least - 1));
    }
  }

  void replicas() {
    if (parallel_.data() == 1) return;
    if (parallel_.zero_stage() == 0) {
      const double saved = bytes_of("optimizer") * (1 - 1.0 / parallel_.data());
      add(v1::Advice::NOTE, "parallel.zero_stage",
          "0 keeps the optimizer state on each of {} replicas; 1 would save {:.1f} "
          "GiB a rank and move as many bytes",
          parallel_.data(), saved / kGiB);
    }
    const double exposed = worst(&v1::RankForecast::exposed_gradients);
    if (exposed > kMuch) {
      add(v1::Advice::WARNING, "parallel.data",
          "{:.0f} % of a step nothing computes while gradients or weights travel; use "
          "more micro-batches a step{}",
          100 * exposed,
          parallel_.zero_stage() >= 2 ? fmt::format(", or zero_stage 1 instead of {}", parallel_.zero_stage()) : "");
    }
  }

  void rates() {
    for (const v1::UsedRates& used : forecast_.rates()) {
      if (used.origin() == v1::MEASURED || used.rates() == "device") continue;
      add(v1::Advice::NOTE, "rates." + used.rates(),
          "what travels there is timed by {}; bench_rates measures such links and writes a cluster file's section",
          used.origin() == v1::DATA_SHEET ? "a data sheet" : "rates that do not say where they are from");
    }
  }

  int64_t micro_tokens() const { return int64_t{spec_.batch().micro()} * spec_.batch().sequence_length(); }
  double bytes_of(const std::string& memory_class) const {
    double most = 0;
    for (const v1::RankForecast& rank : forecast_.ranks()) {
      for (const v1::MemoryForecast& memory : rank.memory()) {
        if (memory.memory_class() == memory_class) most = std::max(most, static_cast<double>(memory.bytes()));
      }
    }
    return most;
  }
  // The largest share of a step over the ranks.
  double worst(double (v1::RankForecast::*seconds)() const) const {
    double most = 0;
    for (const v1::RankForecast& rank : forecast_.ranks()) most = std::max(most, (rank.*seconds)());
    return most / forecast_.step_seconds();
  }

  const v1::Forecast& forecast_;
  const v1::JobSpec& spec_;
  const v1::ParallelSpec& parallel_;
  const v1::ClusterShape& cluster_;
  std::vector<v1::Advice> found_;
};

}  // namespace

std::vector<v1::Advice> advise(const v1::Forecast& forecast, const v1::ClusterShape& cluster) {
  return Adviser(forecast, cluster).advise();
}

}  // namespace telar::forecast
