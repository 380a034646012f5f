// bench_service: a coordinator of its own under the load of a large cluster; prints a table, and JSON with --json.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/synchronization/mutex.h"
#include "bench/flags.h"
#include "bench/service/coordinator.h"
#include "bench/service/load.h"
#include "bench/service/workers.h"
#include "common/channel.h"

namespace telar::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_service [--workers N] [--queued N] [--submits PER_S] [--lists PER_S] [--gets PER_S] [--seconds N]\n"
    "                     [--step-ms N] [--store URL] [--folder DIR] [--json FILE]\n"
    "Each worker is a node with one device and reports a step every --step-ms (1000; 0: none). First the queue is\n"
    "filled with --queued (10000) jobs beyond those that run; then calls come at their rates for --seconds (30).\n"
    "Last, the coordinator is killed and must know every job that it acknowledged.\n"
    "  --folder  the disk to measure on (/tmp)\n"
    "  --store   etcd://HOST:PORT of an etcd with nothing in it; SQLite without\n";

struct Config {
  int64_t workers, queued, submits, lists, gets, seconds, step_ms;
};

absl::StatusOr<Config> config_of(const Flags& flags) {
  Config config{};
  struct {
    const char* name;
    int64_t absent;
    int64_t* value;
  } numbers[] = {{"workers", 1000, &config.workers}, {"queued", 10'000, &config.queued},
                 {"submits", 500, &config.submits},  {"lists", 20, &config.lists},
                 {"gets", 200, &config.gets},        {"seconds", 30, &config.seconds},
                 {"step-ms", 1000, &config.step_ms}};
  for (auto& number : numbers) {
    const auto value = flags.number(number.name, number.absent, std::string(number.name) == "step-ms" ? 0 : 1);
    if (!value.ok()) return value.status();
    *number.value = *value;
  }
  return config;
}

using Scrape = std::map<std::string, double>;

// The value below which a share of a Prometheus histogram's observations lie, between two scrapes: the upper border of
// its bucket. `label`: name="value", where the histogram has one.
double quantile(const Scrape& before, const Scrape& after, const std::string& name, double share,
                const std::string& label = "") {
  std::map<double, double> buckets;
  double all = 0;
  const std::string prefix = name + "_bucket{" + label + (label.empty() ? "" : ",") + "le=\"";
  for (const auto& [key, value] : after) {
    if (key.rfind(prefix, 0) != 0) continue;
    const auto old = before.find(key);
    const double count = value - (old == before.end() ? 0 : old->second);
    const std::string border = key.substr(prefix.size());
    if (border.rfind("+Inf", 0) == 0) {
      all = count;
    } else {
      buckets[std::strtod(border.c_str(), nullptr)] = count;
    }
  }
  for (const auto& [border, count] : buckets) {
    if (count >= share * all) return border;
  }
  return INFINITY;
}

double change(const Scrape& before, const Scrape& after, const std::string& key) {
  const auto value = after.find(key), old = before.find(key);
  return (value == after.end() ? 0 : value->second) - (old == before.end() ? 0 : old->second);
}

// What the coordinator held its one lock for: whoever is slow here makes all calls slow.
nlohmann::ordered_json show_holds(const Scrape& before, const Scrape& after, double seconds) {
  const std::string name = "telar_manager_hold_seconds";
  const std::string begin = name + "_count{";
  nlohmann::ordered_json json;
  fmt::print("\n{:<14}{:>9}{:>10}{:>12}{:>13}\n", "lock held for", "per s", "% of time", "p99 ms <=", "most ms <=");
  for (const auto& [key, value] : after) {
    if (key.rfind(begin, 0) != 0) continue;
    const std::string label = key.substr(begin.size(), key.size() - begin.size() - 1);  // holder="list"
    const double count = change(before, after, key);
    const double share = change(before, after, name + "_sum{" + label + "}") / seconds;
    const double p99 = quantile(before, after, name, 0.99, label) * 1e3;
    const double most = quantile(before, after, name, 1, label) * 1e3;
    const std::string what = label.substr(8, label.size() - 9);
    fmt::print("{:<14}{:>9.0f}{:>10.2f}{:>12g}{:>13g}\n", what, count / seconds, share * 100, p99, most);
    json[what] = {{"per_s", count / seconds}, {"share", share}, {"p99_ms", p99}, {"most_ms", most}};
  }
  return json;
}

nlohmann::ordered_json show(const std::string& title, const std::vector<Latencies::Row>& rows, double seconds) {
  nlohmann::ordered_json json;
  fmt::print("\n{} ({:.1f} s)\n{:<14}{:>9}{:>8}{:>9}{:>9}{:>9}{:>9}\n", title, seconds, "call", "answers", "failed",
             "per s", "p50 ms", "p99 ms", "most ms");
  for (const Latencies::Row& row : rows) {
    fmt::print("{:<14}{:>9}{:>8}{:>9.0f}{:>9.1f}{:>9.1f}{:>9.1f}\n", row.name, row.count, row.failed,
               static_cast<double>(row.count) / seconds, row.p50 * 1e3, row.p99 * 1e3, row.most * 1e3);
    json[row.name] = {{"answers", row.count},    {"failed", row.failed},    {"per_s", row.count / seconds},
                      {"p50_ms", row.p50 * 1e3}, {"p99_ms", row.p99 * 1e3}, {"most_ms", row.most * 1e3}};
  }
  return json;
}

// The names of all jobs, as a new client sees them.
absl::StatusOr<std::set<std::string>> all_jobs(const std::string& address) {
  const auto stub = v1::Jobs::NewStub(dial(address));
  std::set<std::string> names;
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  while (true) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ListJobsResponse response;
    const grpc::Status status = stub->ListJobs(&context, request, &response);
    if (!status.ok()) return absl::UnavailableError(status.error_message());
    for (const v1::Job& job : response.jobs()) names.insert(job.name());
    if (response.next_page_token().empty()) return names;
    request.set_page_token(response.next_page_token());
  }
}

absl::Status run(const Flags& flags) {
  const auto config = config_of(flags);
  if (!config.ok()) return config.status();
  const std::string beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "telar-coordinator";
  auto coordinator = Coordinator::start(beside, flags.text("folder", "/tmp"), flags.text("store", ""));
  if (!coordinator.ok()) return coordinator.status();
  Latencies latencies;
  WorkerOptions wanted;
  wanted.coordinator = (*coordinator)->address();
  wanted.count = static_cast<int>(config->workers);
  wanted.step = std::chrono::milliseconds(config->step_ms);
  auto workers = SimulatedWorkers::start(wanted, &latencies);
  if (!workers.ok()) return workers.status();
  nlohmann::ordered_json json;
  Load load((*coordinator)->address(), &latencies);

  using SteadyClock = std::chrono::steady_clock;
  const auto seconds_since = [](SteadyClock::time_point start) {
    return std::chrono::duration<double>(SteadyClock::now() - start).count();
  };
  auto start = SteadyClock::now();
  load.fill(static_cast<int>(config->workers + config->queued));
  double seconds = seconds_since(start);
  json["fill"] = show(fmt::format("{} workers, filling the queue with {} jobs", config->workers, config->queued),
                      latencies.take(), seconds);

  const auto before = (*coordinator)->metrics();
  const double cpu = (*coordinator)->cpu_seconds();
  latencies.take();
  start = SteadyClock::now();
  load.run(
      {static_cast<double>(config->submits), static_cast<double>(config->lists), static_cast<double>(config->gets)},
      std::chrono::seconds(config->seconds));
  seconds = seconds_since(start);
  json["load"] = show("under load", latencies.take(), seconds);
  const double used = (*coordinator)->cpu_seconds() - cpu;
  const auto after = (*coordinator)->metrics();
  const double commits = change(before, after, "telar_store_commit_seconds_count");
  const double writes = change(before, after, "telar_store_transactions_total");
  const double round_p50 = quantile(before, after, "telar_scheduler_round_seconds", 0.5) * 1e3;
  const double round_p99 = quantile(before, after, "telar_scheduler_round_seconds", 0.99) * 1e3;
  const double resident = static_cast<double>((*coordinator)->resident_bytes()) / (1 << 20);
  json["lock"] = show_holds(before, after, seconds);
  fmt::print("scheduler round p50 <= {:g} ms, p99 <= {:g} ms; {:.0f} changes/s in {:.0f} writes/s to the disk\n",
             round_p50, round_p99, commits / seconds, writes / seconds);
  fmt::print("ranks that run {}, streams lost {}; coordinator: {:.2f} cores, {:.0f} MiB\n", (*workers)->running_ranks(),
             (*workers)->lost_streams(), used / seconds, resident);
  workers->reset();

  const auto acknowledged = load.acknowledged();
  const auto restart = (*coordinator)->kill_and_start();
  if (!restart.ok()) return restart.status();
  const auto known = all_jobs((*coordinator)->address());
  if (!known.ok()) return known.status();
  size_t lost = 0;
  for (const std::string& name : acknowledged) lost += known->count(name) == 0 ? 1 : 0;
  fmt::print("killed and started again in {:.2f} s: {} jobs acknowledged, {} lost\n", *restart, acknowledged.size(),
             lost);
  json["coordinator"] = {{"round_p50_ms", round_p50},
                         {"round_p99_ms", round_p99},
                         {"changes_per_s", commits / seconds},
                         {"writes_per_s", writes / seconds},
                         {"cores", used / seconds},
                         {"resident_mib", resident},
                         {"restart_s", *restart},
                         {"acknowledged", acknowledged.size()},
                         {"lost", lost}};
  if (flags.has("json")) {
    if (absl::Status status = write_file(flags.text("json", ""), json.dump(1) + "\n"); !status.ok()) return status;
  }
  return lost == 0 ? absl::OkStatus() : absl::DataLossError(fmt::format("{} acknowledged jobs are lost", lost));
}

}  // namespace
}  // namespace telar::bench

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const auto flags = telar::bench::Flags::parse(
      argc, argv, {"workers", "queued", "submits", "lists", "gets", "seconds", "step-ms", "store", "folder", "json"},
      {"help"});
  if (!flags.ok() || flags->has("help")) {
    fprintf(stderr, "%s%s", flags.ok() ? "" : (std::string(flags.status().message()) + "\n").c_str(),
            telar::bench::kUsage);
    return flags.ok() ? 0 : 2;
  }
  if (const absl::Status status = telar::bench::run(*flags); !status.ok()) {
    fprintf(stderr, "bench_service: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
