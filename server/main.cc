// telar-coordinator: options, then start, then wait for a signal, then stop in the written order.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "common/addresses.h"
#include "common/clock.h"
#include "common/http_server.h"
#include "common/process.h"
#include "common/pulse.h"
#include "server/auth/guard.h"
#include "server/candidate.h"
#include "server/jobs/forecaster.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/log_retention.h"
#include "server/jobs/queues_file.h"
#include "server/jobs/scheduler.h"
#include "server/options.h"
#include "server/rpc/http_pages.h"
#include "server/rpc/metrics.h"
#include "server/rpc/security_figures.h"
#include "server/rpc/server.h"
#include "server/store/log_store.h"
#include "server/store/store.h"

namespace {

using namespace telar;          // NOLINT: the program's own names.
using namespace telar::server;  // NOLINT

constexpr std::chrono::milliseconds kLogRetention(30'000);

int refuse(ExitCode code, const absl::Status& status) {
  std::cerr << "telar-coordinator: " << std::string(status.message()) << "\n";
  return code;
}

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Where others reach what is bound to `bound`.
std::string advertised(const Options& options, const std::string& bound) {
  if (!options.advertise.empty()) return options.advertise;
  const std::string host = host_of(bound);
  if (host != "0.0.0.0" && host != "[::]") return bound;
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return absl::StrCat(name, bound.substr(bound.rfind(':')));
}

// Where ranks reach the Rendezvous service: any coordinator may be the one that leads.
std::string rendezvous_address(const Options& options, const std::string& bound) {
  const std::string own = advertised(options, bound);
  if (options.peers.empty()) return own;
  std::vector<std::string> all = split_addresses(options.peers);
  all.push_back(own);
  return join_addresses(all);
}

auth::GuardOptions guard_options(const SecurityOptions& security) {
  auth::GuardOptions options;
  options.tokens = security.tokens;
  options.revoked = security.revoked;
  if (security.audit_log != "off") options.audit.path = security.audit_log;
  options.calls_a_second = security.user_rate;
  options.burst = 2 * security.user_rate;
  options.streams = security.user_streams;
  return options;
}

absl::Status make_folders(const Options& options) {
  for (const std::string& folder : {options.data, options.run_root}) {
    std::error_code problem;
    std::filesystem::create_directories(folder, problem);
    if (problem) return absl::PermissionDeniedError(absl::StrCat("cannot make ", folder, ": ", problem.message()));
  }
  return absl::OkStatus();
}

// By rename, so that whoever waits for it never reads half of it.
absl::Status write_port_file(const std::string& path, const std::string& listen, const std::string& http) {
  if (path.empty()) return absl::OkStatus();
  const std::string part = path + ".part";
  std::ofstream file(part);
  file << "{\"listen\": \"" << listen << "\", \"http\": \"" << http << "\"}\n";
  file.close();
  if (file.good() && std::rename(part.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("--port-file: cannot write ", path));
}

absl::StatusOr<std::vector<jobs::QueueConfig>> queues_of(const Options& options) {
  if (!options.queues.empty()) return jobs::read_queues(options.queues);
  return std::vector<jobs::QueueConfig>{{.name = jobs::kDefaultQueue}};
}

// A file with mistakes changes nothing.
void reload_queues(const Options& options, jobs::JobManager& manager) {
  auto queues = queues_of(options);
  if (!queues.ok()) {
    spdlog::error("the queues stay as they are: {}", std::string(queues.status().message()));
    return;
  }
  spdlog::info("queues: {} read again from {}", queues->size(), options.queues);
  manager.set_queues(*std::move(queues));
}

absl::StatusOr<std::unique_ptr<store::Store>> open_store(const Options& options, Candidate* candidate,
                                                         rpc::Metrics* metrics) {
  if (candidate != nullptr) return candidate->open_store(metrics);
  return store::open_sqlite({.path = options.data + "/telar.db",
                             .on_commit = [metrics](double seconds) { metrics->on_commit(seconds); },
                             .on_transaction = [metrics] { metrics->on_transaction(); },
                             .failpoint = {}});
}

// Until a signal says otherwise, or another coordinator has taken over. `candidate`: null where there is only this one.
int serve(const Options& options, Candidate* candidate) {
  const RealClock clock;
  rpc::Metrics metrics;
  auto store = open_store(options, candidate, &metrics);
  if (!store.ok()) return refuse(kStoreUnusable, store.status());
  store::LogStore logs(options.data + "/logs",
                       {.rank_bytes = options.log_rank_bytes,
                        .total_bytes = options.log_total_bytes,
                        .on_missing = [&metrics](uint64_t bytes) { metrics.on_missing_log(bytes); }});
  auto queues = queues_of(options);
  if (!queues.ok()) return refuse(kUsage, queues.status());
  auto manager = jobs::JobManager::open({.run_root = options.run_root,
                                         .rendezvous_address = rendezvous_address(options, options.listen),
                                         .heartbeat_interval = options.heartbeat_interval,
                                         .lease = options.lease,
                                         .stop_grace = options.stop_grace,
                                         .receipt_deadline = options.receipt_deadline,
                                         .queues = *queues,
                                         .patience = options.gang_patience,
                                         .grow_after = options.grow_after,
                                         .allowed_roots = options.security.allowed_roots},
                                        &clock, store->get(), &logs, &metrics);
  if (!manager.ok()) return refuse(kStoreUnusable, manager.status());

  Pulse rounds(&clock, kLongestRound);
  const SecurityOptions& security = options.security;
  auto guard = auth::Guard::open(guard_options(security), &clock,
                                 [&manager](const std::string& name) { return (*manager)->get(name); });
  if (!guard.ok()) return refuse(kUsage, guard.status());
  metrics.add_source([&guard, &security] { return rpc::security_figures(**guard, security.tls.cert); });

  auto http = HttpServer::start(options.http);
  if (!http.ok()) return refuse(kCannotBind, http.status());
  rpc::add_pages(**http, **manager, metrics, rounds);
  auto server = rpc::Server::start({.listen = options.listen,
                                    .reflection = wants_reflection(options),
                                    .tls = security.tls,
                                    .term = candidate == nullptr ? 0 : candidate->term()},
                                   manager->get(), &metrics, guard->get());
  if (!server.ok()) return refuse(kCannotBind, server.status());
  // With port 0 the address is known only now; no worker can have dialled it before.
  (*manager)->set_rendezvous_address(rendezvous_address(options, (*server)->address()));
  auto retention = std::make_unique<jobs::LogRetention>(manager->get(), kLogRetention);
  auto forecaster = std::make_unique<jobs::Forecaster>(manager->get());
  auto scheduler = std::make_unique<jobs::Scheduler>(manager->get(), [&metrics, &rounds](double seconds) {
    metrics.on_round(seconds);
    rounds.beat();
    notify_systemd("WATCHDOG=1");
  });

  const std::string http_address = absl::StrCat(host_of(options.http), ":", (*http)->port());
  if (absl::Status status = write_port_file(options.port_file, (*server)->address(), http_address); !status.ok()) {
    return refuse(kUsage, status);
  }
  spdlog::info("version {} serves gRPC on {}, HTTP on {}, data in {}, runs in {}", version(), (*server)->address(),
               http_address, options.data, options.run_root);
  notify_systemd(absl::StrCat("READY=1\nSTATUS=serving on ", (*server)->address()));

  const auto deposed = [candidate] { return candidate != nullptr && candidate->deposed(); };
  int signal = 0;
  while (!deposed() && signal != SIGTERM && signal != SIGINT) {
    signal = wait_for_signal();
    if (signal == SIGHUP) reload_queues(options, **manager);
  }
  spdlog::info("{}: stopping; jobs go on without the coordinator",
               deposed() ? std::string("another coordinator leads") : absl::StrCat("signal ", signal));
  notify_systemd("STOPPING=1");
  (*server)->stop();  // No new requests; streams end.
  scheduler.reset();  // No new placements.
  retention.reset();
  forecaster.reset();
  http->reset();  // Scraped to the end.
  manager->reset();
  store->reset();  // Everything acknowledged is in it already.
  return kStopped;
}

// With an etcd: as a standby first.
int take_turns(Options options) {
  auto candidate = Candidate::open(options);
  if (!candidate.ok()) return refuse(kStoreUnusable, candidate.status());
  // Now, not only when it leads.
  if (const auto queues = queues_of(options); !queues.ok()) return refuse(kUsage, queues.status());
  const auto places =
      (*candidate)
          ->wait_for_turn(
              [&](const Places& bound) { return write_port_file(options.port_file, bound.grpc, bound.http); },
              [&](const std::string& bound) { return advertised(options, bound); });
  if (!places.ok()) return refuse(kCannotBind, places.status());
  if (!places->has_value()) return kStopped;
  options.listen = (*places)->grpc;
  options.http = (*places)->http;
  const int code = serve(options, candidate->get());
  return (*candidate)->deposed() ? kDeposed : code;  // The candidate gives up the leadership, if it is still held.
}

int run(const Options& options) {
  init_logging("telar-coordinator", options.log_level);
  if (options.security.tls.any()) {
    const absl::Status usable = check_tls(options.security.tls, TlsSide::kServer, RealClock().wall());
    if (!usable.ok()) return refuse(kUsage, usable);
  }
  if (options.etcd.tls.any()) {
    const absl::Status usable = check_tls(options.etcd.tls, TlsSide::kClient, RealClock().wall());
    const std::string text = absl::StrReplaceAll(usable.message(), {{"--tls-", "--etcd-"}});
    if (!usable.ok()) return refuse(kUsage, absl::InvalidArgumentError(text));
  }
  if (absl::Status status = make_folders(options); !status.ok()) return refuse(kStoreUnusable, status);
  return options.store.empty() ? serve(options, nullptr) : take_turns(options);
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // Debian builds Abseil with the detector on.
  setenv("GRPC_VERBOSITY", "NONE", 0);  // Its errors come back as a status, and we say them in one line.
  block_signals();
  const auto options = parse_options({argv + 1, argv + argc});
  if (!options.ok()) return refuse(kUsage, options.status());
  if (options->help) std::cout << usage();
  if (options->version) std::cout << version() << "\n";
  if (options->help || options->version) return kStopped;
  return run(*options);
}
