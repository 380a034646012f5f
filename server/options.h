// The command line of telar-coordinator.
//
// Exit codes of the program:
//   0  stopped by a signal, or --help, --version
//   2  a mistake on the command line; all of them are named
//   3  a port cannot be bound; it is named
//   4  the store, or --data, cannot be used; it is named
//   7  leads no more: another coordinator has taken over. Start it again, as a standby
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/security_options.h"
#include "server/store/etcd_access.h"

namespace telar::server {

enum ExitCode { kStopped = 0, kUsage = 2, kCannotBind = 3, kStoreUnusable = 4, kDeposed = 7 };

struct Options {
  std::string listen = "127.0.0.1:7070";  // gRPC.
  std::string http = "127.0.0.1:7071";    // /metrics, /sd/workers, /healthz, /readyz.
  std::string advertise;                  // Where ranks reach us. Default: the address that --listen got.
  std::string data;                       // Database and logs; only logs with an etcd, and shared by all then.
  std::string store;                      // etcd://host:port[,...]; empty: SQLite, in `data`.
  store::EtcdAccess etcd;                 // How that etcd is dialled.
  std::string peers;                      // Addresses of the other coordinators of that etcd, with commas between.
  std::chrono::milliseconds leadership_ttl{3'000};  // Whole seconds.
  std::string run_root;                             // Default: <data>/runs. Every worker must see it.
  std::chrono::milliseconds heartbeat_interval{2'000};
  std::chrono::milliseconds lease{10'000};
  std::chrono::milliseconds stop_grace{15'000};
  std::chrono::milliseconds receipt_deadline{60'000};
  uint64_t log_rank_bytes = 4ULL << 30;
  uint64_t log_total_bytes = 0;  // No limit.
  std::string queues;            // File of the queues; empty: only "default".
  std::chrono::milliseconds gang_patience{300'000};
  std::chrono::milliseconds grow_after{300'000};
  std::string log_level = "info";
  std::string port_file;  // {"listen": "host:port", "http": "host:port"} once both are bound.
  std::string reflection = "auto";
  SecurityOptions security;
  bool help = false;
  bool version = false;
};

// "--name value" or "--name=value". INVALID_ARGUMENT lists every mistake, one a line.
absl::StatusOr<Options> parse_options(const std::vector<std::string>& arguments);

// The text of --help.
std::string usage();

// gRPC reflection is on by itself where only this machine can ask, and nobody has to say who they are.
bool wants_reflection(const Options& options);

}  // namespace telar::server
