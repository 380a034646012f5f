// What the simulator says of a pipeline schedule with stages that take given times: one JSON line.
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/flags.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/parallel/schedule_simulator.h"

namespace telar::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_schedule --schedule NAME --ranks N [--virtual-stages N] --micro-batches N --costs F,I,W[/F,I,W...]\n"
    "                      [--transfer MS]\n"
    "--costs: milliseconds of each stage's forward, input gradient and weight gradient. A transfer takes --transfer.\n";

absl::StatusOr<double> milliseconds(const std::string& text) {
  double value = 0;
  if (absl::SimpleAtod(text, &value) && value >= 0) return value * 1e-3;
  return absl::InvalidArgumentError("'" + text + "' is no number of milliseconds");
}

absl::StatusOr<parallel::ScheduleCosts> costs_of(const Flags& flags) {
  parallel::ScheduleCosts costs;
  for (const std::string& stage : std::vector<std::string>(absl::StrSplit(flags.text("costs", ""), '/'))) {
    const std::vector<std::string> parts = absl::StrSplit(stage, ',');
    if (parts.size() != 3) return absl::InvalidArgumentError("--costs: '" + stage + "' is not F,I,W");
    std::vector<double> values;
    for (const std::string& part : parts) {
      const auto value = milliseconds(part);
      if (!value.ok()) return value.status();
      values.push_back(*value);
    }
    costs.stages.push_back({values[0], values[1], values[2]});
  }
  const auto transfer = milliseconds(flags.text("transfer", "0"));
  if (!transfer.ok()) return transfer.status();
  costs.latency = *transfer;
  return costs;
}

absl::Status run(const Flags& flags) {
  const auto ranks = flags.number("ranks", 1, 1), stages = flags.number("virtual-stages", 1, 1),
             micro_batches = flags.number("micro-batches", 1, 1);
  for (const auto* number : {&ranks, &stages, &micro_batches}) {
    if (!number->ok()) return number->status();
  }
  const auto costs = costs_of(flags);
  if (!costs.ok()) return costs.status();
  const auto schedule = parallel::make_schedule(flags.text("schedule", "1f1b"), static_cast<int>(*ranks),
                                                static_cast<int>(*stages), static_cast<int>(*micro_batches));
  if (!schedule.ok()) return schedule.status();
  const auto forecast = parallel::simulate(*schedule, *costs);
  if (!forecast.ok()) return forecast.status();
  nlohmann::ordered_json json{{"makespan_ms", forecast->makespan * 1e3}, {"bubble", forecast->bubble_fraction}};
  for (const parallel::RankForecast& rank : forecast->ranks) {
    json["ranks"].push_back({{"busy_ms", rank.busy * 1e3},
                             {"idle_ms", rank.idle * 1e3},
                             {"exposed_ms", rank.exposed_communication * 1e3},
                             {"in_flight", rank.peak_until_weight_grad}});
  }
  std::cout << json.dump() << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace telar::bench

int main(int argc, char** argv) {
  const auto flags = telar::bench::Flags::parse(
      argc, argv, {"schedule", "ranks", "virtual-stages", "micro-batches", "costs", "transfer"}, {});
  const absl::Status status = flags.ok() ? telar::bench::run(*flags) : flags.status();
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << "bench_schedule: " << std::string(status.message()) << "\n" << telar::bench::kUsage;
  return 2;
}
