// The command line of telar-worker. Exit codes:
//   0  ended by SIGTERM or SIGINT
//   2  usage: an option or its value is wrong
//   3  the HTTP address cannot be bound
//   4  the state directory cannot be used, or another daemon holds it
//   5  the spawner process has ended; a restart takes the running ranks over
//   6  no device of the kind asked for
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls.h"
#include "worker/agent/devices.h"

namespace telar {

enum WorkerExit {
  kWorkerOk = 0,
  kWorkerUsage = 2,
  kWorkerHttp = 3,
  kWorkerState = 4,
  kWorkerSpawner = 5,
  kWorkerDevice = 6
};

struct WorkerOptions {
  std::string coordinator = "127.0.0.1:7070";  // Or several, with commas between.
  std::string node;                            // Default: the host's name.
  std::string state = "/var/lib/telar-worker";
  std::string listen_host = "127.0.0.1";
  std::string http = "127.0.0.1:0";
  std::string rank_program;  // Default: telar-rank beside this program.
  std::string port_file;     // Written once the addresses are bound; empty: none.
  std::string log_level = "info";
  agent::DeviceKind device_kind = agent::DeviceKind::kAuto;
  int cpu_devices = 1;
  bool insecure_listen = false;
  TlsFiles tls;                            // Its ranks use them, too.
  std::vector<std::string> allowed_roots;  // See common/roots.h.
  int nvlink_domain_size = 0;              // 0: all devices of the node are in one.
  int keep_finished = 20;
  std::string probe = "auto";  // auto (with GPUs) | on | off
  std::string probe_program;   // Default: telar-probe beside this program.
  std::string nvml = "libnvidia-ml.so.1";
  std::string device_files;  // Default: /dev/nvidia with GPUs, else none.
  std::chrono::milliseconds probe_deadline{10'000};
  std::chrono::milliseconds residue_after{10'000};
  uint64_t rank_log_limit = 256ULL << 20;
  std::chrono::milliseconds log_patience{30'000};
  std::map<std::string, std::string> labels;  // What jobs may ask for; "rack" tells which nodes are close.
  bool spare = false;                         // Kept free for jobs that lost a node.
  bool stop_ranks_on_exit = false;
  std::chrono::milliseconds stop_grace{10'000};
  std::chrono::milliseconds spawner_idle{10'000};
};

// CANCELLED: help or version was asked for; the text is the message. INVALID_ARGUMENT: what is wrong, in one line.
absl::StatusOr<WorkerOptions> parse_options(int argc, char** argv);

}  // namespace telar
