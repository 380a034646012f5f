// Measures what a cluster file says of links and of a step: docs/formats/rates.md.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench/flags.h"
#include "bench/folder_store.h"
#include "bench/link_rates.h"
#include "bench/step_rates.h"
#include "worker/backend/module.h"

namespace telar::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_rates [--backend cpu|cuda] [--device N] [--threads N] [--json FILE]\n"
    "                   [--rank R --ranks N --store FOLDER [--host ADDRESS] [--section network|links] [--most-mib N]]\n"
    "                   [--products] [--rows N] [--width N] [--heat SECONDS]\n"
    "One process a rank, all with the same options but --rank, --device and --host (the address that others reach it\n"
    "at). FOLDER is empty and seen by all. Ranks 0 and 1 measure every kind of call, up to --most-mib (1024); more\n"
    "ranks, what a further round takes. --products: the constants of a step, too; of one rank, of its products alone.\n"
    "Rank 0 prints, and writes a ClusterShape to --json: with --section network of links between nodes, with links of\n"
    "those inside one.\n";

struct Options {
  std::string backend, host, store, section, json;
  int device = 0, threads = 1, rank = 0, ranks = 1;
  uint64_t most = 0;
  bool products = false;
  StepRateOptions step;
};

absl::StatusOr<Options> options_of(const Flags& flags) {
  Options options{.backend = flags.text("backend", "cpu"),
                  .host = flags.text("host", "127.0.0.1"),
                  .store = flags.text("store", ""),
                  .section = flags.text("section", "network"),
                  .json = flags.text("json", ""),
                  .products = flags.has("products")};
  const auto device = flags.number("device", 0), threads = flags.number("threads", 1, 1),
             rank = flags.number("rank", 0), ranks = flags.number("ranks", 1, 1),
             most = flags.number("most-mib", 1024, 1), rows = flags.number("rows", options.step.rows, 8),
             width = flags.number("width", options.step.width, 8),
             heat = flags.number("heat", static_cast<int64_t>(options.step.heat_seconds));
  for (const auto* number : {&device, &threads, &rank, &ranks, &most, &rows, &width, &heat}) {
    if (!number->ok()) return number->status();
  }
  options.device = static_cast<int>(*device);
  options.threads = static_cast<int>(*threads);
  options.rank = static_cast<int>(*rank);
  options.ranks = static_cast<int>(*ranks);
  options.most = static_cast<uint64_t>(*most) << 20;
  options.step.rows = *rows;
  options.step.width = *width;
  options.step.heat_seconds = static_cast<double>(*heat);
  options.step.transfer_bytes = std::min(options.step.transfer_bytes, options.most);
  if (options.rank >= options.ranks) return absl::InvalidArgumentError("--rank: must be below --ranks");
  if (options.ranks > 1 && options.store.empty()) return absl::InvalidArgumentError("--store: ranks meet there");
  if (options.section != "network" && options.section != "links") {
    return absl::InvalidArgumentError("--section: is network or links");
  }
  if (options.ranks == 1 && !options.products) return absl::InvalidArgumentError("one rank has no links: --products?");
  return options;
}

class Rank {
 public:
  Rank(const Options& options, backend::Device& device) : options_(options), device_(device) {}

  absl::Status run() {
    if (options_.ranks > 1) {
      if (absl::Status status = measure_gang(); !status.ok()) return status;
    } else {
      const auto products = measure_products(device_, options_.step);
      if (!products.ok()) return products.status();
      fmt::print("products: sustained_flops {:.4g}, start_seconds {:.2g}\n", products->sustained_flops(),
                 products->start_seconds());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status measure_gang() {
    std::vector<int> all(static_cast<size_t>(options_.ranks));
    std::iota(all.begin(), all.end(), 0);
    std::vector<backend::Group> groups;
    if (options_.rank < 2) groups.push_back({"pair", {0, 1}});
    if (options_.ranks > 2) groups.push_back({"all", all});
    FolderStore store(options_.store);
    auto made = device_.create_communicators(store, {.rank = options_.rank, .listen_host = options_.host}, groups);
    if (!made.ok()) return made.status();
    v1::ClusterShape cluster;
    v1::LinkRates& links = *(options_.section == "links" ? cluster.mutable_links() : cluster.mutable_network());
    BesideRates beside;
    if (options_.rank < 2) {
      backend::Communicator& pair = *made->front();
      const auto points = measure_links(device_, pair, options_.most);
      if (!points.ok()) return points.status();
      links = *points;
      if (options_.products) {
        const auto constants = measure_beside(device_, pair, options_.step);
        if (!constants.ok()) return constants.status();
        beside = *constants;
      }
    }
    links.set_step_share(beside.step_share);
    links.set_slowdown(beside.slowdown);
    links.set_send_slowdown(beside.send_slowdown);
    if (options_.ranks > 2) {
      const auto latency = measure_latency(device_, *made->back(), links);
      if (!latency.ok()) return latency.status();
      links.set_latency_seconds(*latency);
    }
    if (options_.rank > 0) return absl::OkStatus();
    if (options_.products) fmt::print("waiting_power {:.3f}\n", beside.waiting_power);
    return tell(cluster);
  }

  absl::Status tell(const v1::ClusterShape& cluster) const {
    google::protobuf::util::JsonPrintOptions format;
    format.add_whitespace = true;
    format.preserve_proto_field_names = true;
    std::string text;
    const auto printed = google::protobuf::util::MessageToJsonString(cluster, &text, format);
    if (!printed.ok()) return absl::InternalError(printed.message().ToString());
    fmt::print("{}", text);
    return options_.json.empty() ? absl::OkStatus() : write_file(options_.json, text);
  }

  const Options& options_;
  backend::Device& device_;
};

absl::Status run(const Flags& flags) {
  const auto options = options_of(flags);
  if (!options.ok()) return options.status();
  auto device = backend::open_device(options->backend, {.index = options->device, .threads = options->threads});
  if (!device.ok()) return device.status();
  return Rank(*options, **device).run();
}

}  // namespace
}  // namespace telar::bench

int main(int argc, char** argv) {
  const auto flags = telar::bench::Flags::parse(argc, argv,
                                                {"backend", "device", "threads", "json", "rank", "ranks", "store",
                                                 "host", "section", "most-mib", "rows", "width", "heat"},
                                                {"products"});
  const absl::Status status = flags.ok() ? telar::bench::run(*flags) : flags.status();
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status.message() << "\n" << telar::bench::kUsage;
  return EXIT_FAILURE;
}
