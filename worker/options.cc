#include "worker/options.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/addresses.h"
#include "common/channel.h"
#include "common/process.h"

namespace telar {
namespace {

constexpr const char* kFooter =
    "Without --stop-ranks-on-exit, SIGTERM ends this daemon and nothing else: running ranks go on, and the next start\n"
    "takes them over. With it the coordinator is told: their jobs go on elsewhere at once.\n"
    "Exit codes: 0 ended by a signal, 2 usage, 3 HTTP address, 4 state directory, 5 spawner lost, 6 no such device.";

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string beside_this_program(const std::string& name) {
  std::error_code problem;
  return (std::filesystem::read_symlink("/proc/self/exe", problem).parent_path() / name).string();
}

bool is_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size() || text.size() - colon > 6) return false;
  const std::string port = text.substr(colon + 1);
  return port.find_first_not_of("0123456789") == std::string::npos && std::stoi(port) <= 65535;
}

std::string address(const std::string& text) {
  return is_address(text) ? "" : absl::StrCat("'", text, "' is not host:port with a port up to 65535");
}

std::string absolute(const std::string& text) {
  const bool right = !text.empty() && text.front() == '/' && text.find(':') == std::string::npos;
  return right ? "" : absl::StrCat("'", text, "' is not an absolute path without ':'");
}

std::string node_name(const std::string& text) {
  const bool right =
      !text.empty() && text.size() <= 253 &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == std::string::npos;
  return right ? "" : absl::StrCat("'", text, "' is not 1 to 253 characters of [A-Za-z0-9.-_]");
}

// The files are in order, and the certificate is this node's.
absl::Status check_certificate(const WorkerOptions& options) {
  if (absl::Status status = check_tls(options.tls, TlsSide::kClient, RealClock().wall()); !status.ok()) return status;
  if (options.tls.cert.empty()) return absl::InvalidArgumentError("--tls-cert: is missing; it says which node this is");
  const auto certificate = read_certificate(options.tls.cert);
  if (!certificate.ok()) return certificate.status();
  const std::vector<std::string>& nodes = certificate->nodes;
  if (std::find(nodes.begin(), nodes.end(), options.node) != nodes.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--tls-cert: ", options.tls.cert, " is of ",
                   nodes.empty() ? "no node" : absl::StrCat("node ", absl::StrJoin(nodes, ", ")), ", not of --node ",
                   options.node, "; it needs the SAN URI:telar://node/", options.node));
}

void add_security_options(CLI::App& app, WorkerOptions& options) {
  app.add_option("--tls-cert", options.tls.cert, "This node's certificate, PEM, with the SAN URI:telar://node/NODE")
      ->envname("TELAR_TLS_CERT");
  app.add_option("--tls-key", options.tls.key, "Its private key")->envname("TELAR_TLS_KEY");
  app.add_option("--tls-ca", options.tls.ca, "Who signed the coordinator's certificate")->envname("TELAR_TLS_CA");
  app.add_flag("--insecure-listen", options.insecure_listen, "Serve --http beyond this machine without --tls-cert");
  app.add_option("--allowed-root", options.allowed_roots, "Ranks read and write below it only; may be repeated")
      ->allow_extra_args(false)
      ->check(absolute);
}

// Ranks get them by the environment, and run elsewhere.
void make_absolute(TlsFiles& files) {
  for (std::string* path : {&files.cert, &files.key, &files.ca}) {
    if (!path->empty()) *path = std::filesystem::absolute(*path).string();
  }
}

// The door of --http, and how this node shows who it is.
absl::Status check_security(const WorkerOptions& options) {
  if (options.tls.any()) return check_certificate(options);
  if (options.insecure_listen || is_loopback(options.http)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--http: ", options.http, " can be reached from other machines; give ",
                                                 "--tls-cert, --tls-key and --tls-ca, or --insecure-listen"));
}

// As they are typed; parse_options() turns them into what the daemon takes.
struct HealthTimes {
  double probe_deadline = 10, residue_after = 10, log_patience = 30;  // Seconds.
  double rank_log_limit = 256;                                        // MiB.
};

void add_health_options(CLI::App& app, WorkerOptions& options, HealthTimes& times) {
  app.add_option("--probe", options.probe, "Watch the devices' health: auto (if they are GPUs) | on | off")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option("--probe-program", options.probe_program, "The program to watch it with")->capture_default_str();
  app.add_option("--nvml", options.nvml, "The driver's library that the probe loads")->capture_default_str();
  app.add_option("--probe-deadline", times.probe_deadline, "Seconds that the driver has to answer the probe")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  app.add_option("--device-files", options.device_files,
                 "What the name of a device's file begins with, before its index; default: /dev/nvidia for GPUs");
  app.add_option("--residue-after", times.residue_after,
                 "Seconds after its end until what is left of a rank is told of")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  app.add_option("--rank-log-limit", times.rank_log_limit,
                 "MiB of one rank's log that stay on this node's disk; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--log-patience", times.log_patience,
                 "Seconds after a rank's end until a coordinator without room for its log is let off the rest")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void take_health_times(WorkerOptions& options, const HealthTimes& times) {
  options.probe_deadline = milliseconds_of(times.probe_deadline);
  options.residue_after = milliseconds_of(times.residue_after);
  options.log_patience = milliseconds_of(times.log_patience);
  options.rank_log_limit = static_cast<uint64_t>(times.rank_log_limit * (1 << 20));
}

std::string node_label(const std::string& text) {
  const size_t equals = text.find('=');
  const bool right = equals != std::string::npos && equals > 0 && equals <= 253 && text.size() - equals <= 254;
  return right ? "" : absl::StrCat("'", text, "' is not NAME=VALUE with at most 253 characters each");
}

absl::Status check_programs(const WorkerOptions& options) {
  const auto check = [](const char* flag, const std::string& path) {
    if (access(path.c_str(), X_OK) == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " is no program that can be run"));
  };
  if (absl::Status status = check("--rank-program", options.rank_program); !status.ok()) return status;
  return options.probe == "on" ? check("--probe-program", options.probe_program) : absl::OkStatus();
}

// Labels that node_label() found right.
void take_labels(WorkerOptions& options, const std::vector<std::string>& labels) {
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    options.labels[label.substr(0, equals)] = label.substr(equals + 1);
  }
}

}  // namespace

absl::StatusOr<WorkerOptions> parse_options(int argc, char** argv) {
  WorkerOptions options;
  options.node = host_name();
  options.rank_program = beside_this_program("telar-rank");
  options.probe_program = beside_this_program("telar-probe");
  double stop_grace = 10, spawner_idle = 10;
  HealthTimes times;
  std::vector<std::string> labels;
  const std::map<std::string, agent::DeviceKind> kinds = {
      {"auto", agent::DeviceKind::kAuto}, {"cpu", agent::DeviceKind::kCpu}, {"gpu", agent::DeviceKind::kGpu}};

  CLI::App app("telar-worker: runs the ranks of jobs on this node, as the coordinator assigns them.");
  app.footer(kFooter);
  app.set_version_flag("--version", version());
  app.add_option("--coordinator", options.coordinator,
                 "host:port of telar-coordinator; several with commas between: the one that leads is followed")
      ->capture_default_str()
      ->check(check_addresses);
  app.add_option("--node", options.node, "This node's name, unique in the cluster")
      ->capture_default_str()
      ->check(node_name);
  app.add_option("--state", options.state, "Directory for rank directories; one a daemon")->capture_default_str();
  app.add_option("--listen-host", options.listen_host, "Address at which ranks of other nodes reach ranks of this one")
      ->capture_default_str();
  app.add_option("--http", options.http, "host:port for /metrics and /healthz; port 0 takes a free one")
      ->capture_default_str()
      ->check(address);
  app.add_option("--rank-program", options.rank_program, "The program to run a rank with")->capture_default_str();
  app.add_option("--device-kind", options.device_kind, "auto (GPUs if any, else CPU slots) | cpu | gpu")
      ->transform(CLI::CheckedTransformer(kinds, CLI::ignore_case));
  app.add_option("--cpu-devices", options.cpu_devices, "CPU slots to offer, one rank each")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--nvlink-domain-size", options.nvlink_domain_size,
                 "Devices that NVLink joins, in groups of that many by index; default: all of this node")
      ->check(CLI::Range(1, 4096));
  app.add_option("--label", labels, "A label of this node; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->check(node_label);
  app.add_flag("--spare", options.spare, "Keep this node free for jobs that lost another one");
  app.add_option("--keep-finished", options.keep_finished, "Directories of ended ranks to keep")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  app.add_flag("--stop-ranks-on-exit", options.stop_ranks_on_exit, "On SIGTERM stop the ranks too, and wait for them");
  app.add_option("--stop-grace", stop_grace, "Seconds from SIGTERM to SIGKILL for --stop-ranks-on-exit")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--spawner-idle", spawner_idle, "Seconds that the spawner outlives its last rank and daemon")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  add_security_options(app, options);
  add_health_options(app, options, times);
  app.add_option("--log-level", options.log_level, "trace | debug | info | warn | error")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  app.add_option("--port-file", options.port_file, "JSON file to write the bound HTTP address to");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return absl::CancelledError(app.help());
  } catch (const CLI::CallForVersion&) {
    return absl::CancelledError(absl::StrCat("telar-worker ", version(), "\n"));
  } catch (const CLI::ParseError& problem) {
    return absl::InvalidArgumentError(problem.what());
  }
  if (absl::Status status = check_programs(options); !status.ok()) return status;
  make_absolute(options.tls);
  if (absl::Status status = check_security(options); !status.ok()) return status;
  take_labels(options, labels);
  options.stop_grace = milliseconds_of(stop_grace);
  take_health_times(options, times);
  options.spawner_idle = milliseconds_of(spawner_idle);
  return options;
}

}  // namespace telar
