// telar-worker: one a node. Parse, take the state directory, fork the spawner, then start what has threads.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/http_server.h"
#include "common/process.h"
#include "common/pulse.h"
#include "common/roots.h"
#include "common/tls.h"
#include "worker/agent/agent.h"
#include "worker/agent/devices.h"
#include "worker/agent/rank_dir.h"
#include "worker/agent/spawner.h"
#include "worker/options.h"

namespace telar {
namespace {

constexpr std::chrono::milliseconds kFirstRegistration{5'000};

int refuse(int code, const absl::Status& status) {
  fprintf(stderr, "telar-worker: %s\n", std::string(status.message()).c_str());
  return code;
}

// Where Prometheus finds the page: a wildcard address is of no use to it.
std::string metrics_address(const WorkerOptions& options, int port) {
  std::string host = options.http.substr(0, options.http.rfind(':'));
  if (host == "0.0.0.0" || host == "[::]") host = options.listen_host;
  return absl::StrCat(host, ":", port);
}

absl::Status write_port_file(const WorkerOptions& options, const std::string& http) {
  if (options.port_file.empty()) return absl::OkStatus();
  return agent::write_file(options.port_file, absl::StrCat("{\"http\": \"", http, "\", \"node\": \"", options.node,
                                                           "\", \"pid\": ", getpid(), "}\n"));
}

// Where it is not asked for it goes with GPUs, and a program that is not there is no reason to have none of them.
bool wants_probe(const WorkerOptions& options, const std::vector<v1::Device>& devices) {
  if (options.probe != "auto") return options.probe == "on";
  if (devices[0].kind() != v1::ResourceSpec::GPU) return false;
  if (access(options.probe_program.c_str(), X_OK) == 0) return true;
  spdlog::warn("--probe-program: {} is not there; nobody watches the GPUs", options.probe_program);
  return false;
}

agent::AgentConfig make_config(const WorkerOptions& options, const std::vector<v1::Device>& devices,
                               const std::string& http) {
  agent::AgentConfig config;
  config.coordinator = options.coordinator;
  config.self.set_node(options.node);
  config.self.set_incarnation(uuid4());
  config.self.mutable_devices()->Assign(devices.begin(), devices.end());
  config.self.set_listen_host(options.listen_host);
  config.self.set_metrics_address(http);
  config.self.set_version(version());
  config.self.mutable_labels()->insert(options.labels.begin(), options.labels.end());
  config.self.set_spare(options.spare);
  config.ranks.rank_program = std::filesystem::absolute(options.rank_program).string();
  config.ranks.default_threads = agent::threads_per_device(devices.size());
  config.ranks.keep_finished = options.keep_finished;
  config.ranks.device_files = options.device_files;
  if (config.ranks.device_files.empty() && devices[0].kind() == v1::ResourceSpec::GPU) {
    config.ranks.device_files = "/dev/nvidia";
  }
  config.ranks.residue_after = options.residue_after;
  config.revoked_grace = options.stop_grace;
  config.shipper.log_limit = options.rank_log_limit;
  config.shipper.full_patience = options.log_patience;
  if (wants_probe(options, devices)) {
    config.probe.program = options.probe_program;
    config.probe.library = options.nvml;
    config.probe.devices = devices;
    config.probe.deadline = options.probe_deadline;
  }
  return config;
}

// When this node's certificate ends; without one there is no such series.
class CertificateGauge {
 public:
  CertificateGauge(prometheus::Registry& registry, std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    gauge_ = &prometheus::BuildGauge()
                  .Name("telar_tls_certificate_expiry_timestamp_seconds")
                  .Help("When the own certificate ends")
                  .Register(registry)
                  .Add({});
  }
  void refresh() {
    if (gauge_ == nullptr) return;
    const auto certificate = read_certificate(path_);
    if (certificate.ok()) gauge_->Set(std::chrono::duration<double>(certificate->not_after.time_since_epoch()).count());
  }

 private:
  const std::string path_;
  prometheus::Gauge* gauge_ = nullptr;
};

int supervise(const WorkerOptions& options, agent::Agent& agent, const std::string& http) {
  if (absl::Status status = write_port_file(options, http); !status.ok()) return refuse(kWorkerState, status);
  agent.start();
  agent.wait_first_registration(kFirstRegistration);
  notify_systemd("READY=1");
  spdlog::info("node {}, HTTP on {}", options.node, http);
  int signal = 0;
  while (agent.status().ok() && signal != SIGTERM && signal != SIGINT) signal = wait_for_signal();
  notify_systemd("STOPPING=1");
  if (!agent.status().ok()) return refuse(kWorkerSpawner, agent.status());
  if (options.stop_ranks_on_exit) agent.stop_ranks(options.stop_grace);
  return kWorkerOk;
}

int serve(const WorkerOptions& options, const agent::StateDir& state, agent::Spawner& spawner) {
  const auto devices = agent::find_devices_within(options.probe_deadline, state.path() + "/devices", [&] {
    return agent::find_devices(options.device_kind, options.cpu_devices, options.nvlink_domain_size);
  });
  if (!devices.ok()) return refuse(kWorkerDevice, devices.status());
  prometheus::Registry registry;
  auto http = HttpServer::start(options.http);
  if (!http.ok()) return refuse(kWorkerHttp, http.status());
  const std::string address = metrics_address(options, (*http)->port());
  const RealClock clock;
  Pulse rounds(&clock, kLongestRound);
  const auto beat = [&rounds] {
    rounds.beat();
    notify_systemd("WATCHDOG=1");
  };
  agent::Agent agent(make_config(options, *devices, address), &state, &spawner, &registry, beat,
                     [] { kill(getpid(), SIGUSR1); });
  CertificateGauge expiry(registry, options.tls.cert);
  (*http)->handle("/metrics", [&] {
    expiry.refresh();
    return render_metrics(registry);
  });
  (*http)->handle("/healthz", [&] {
    const absl::Status stuck = rounds.check();  // First: a loop that stands may hold the agent's lock.
    return answer_of(stuck.ok() ? agent.status() : stuck, "ok\n");
  });
  (*http)->handle("/readyz", [&] { return answer_of(agent.readiness(), "ready\n"); });
  const int code = supervise(options, agent, address);
  http->reset();  // Its handlers use the agent.
  return code;
}

int run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (absl::IsCancelled(options.status())) {
    printf("%s", std::string(options.status().message()).c_str());
    return kWorkerOk;
  }
  if (!options.ok()) return refuse(kWorkerUsage, options.status());
  // Ranks dial the coordinator with the same files, and open what they may.
  tls_to_environment(options->tls);
  roots_to_environment(options->allowed_roots);
  auto state = agent::StateDir::open(options->state);
  if (!state.ok()) return refuse(kWorkerState, state.status());
  // Before any thread: see spawner.h.
  auto spawner = agent::Spawner::connect_or_fork(*state, options->spawner_idle);
  if (!spawner.ok()) return refuse(kWorkerState, spawner.status());
  init_logging("telar-worker", options->log_level);
  const int code = serve(*options, *state, **spawner);
  (*spawner)->dismiss();
  return code;
}

}  // namespace
}  // namespace telar

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  setenv("GRPC_VERBOSITY", "NONE", 0);  // Its errors come back as a status, and we log them in one line.
  telar::block_signals();
  return telar::run(argc, argv);
}
