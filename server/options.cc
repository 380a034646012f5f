#include "server/options.h"

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/addresses.h"
#include "common/channel.h"
#include "server/store/etcd_client.h"

namespace telar::server {
namespace {

using Mistakes = std::vector<std::string>;
using std::chrono::milliseconds;

struct Flag {
  const char* name;
  const char* value;  // Null: it takes none.
  const char* help;
  std::function<bool(Options&, const std::string&)> set;  // False: not such a value.
};

std::function<bool(Options&, const std::string&)> text(std::string Options::*member) {
  return [member](Options& options, const std::string& value) {
    options.*member = value;
    return !value.empty();
  };
}

std::function<bool(Options&, const std::string&)> duration(milliseconds Options::*member) {
  return [member](Options& options, const std::string& value) {
    absl::Duration parsed;
    if (!absl::ParseDuration(value, &parsed) || parsed <= absl::ZeroDuration()) return false;
    options.*member = milliseconds(absl::ToInt64Milliseconds(parsed));
    return (options.*member).count() > 0;
  };
}

std::function<bool(Options&, const std::string&)> security(std::string* (*member)(SecurityOptions&)) {
  return [member](Options& options, const std::string& value) {
    *member(options.security) = value;
    return !value.empty();
  };
}

std::function<bool(Options&, const std::string&)> etcd(std::string* (*member)(store::EtcdAccess&)) {
  return [member](Options& options, const std::string& value) {
    *member(options.etcd) = value;
    return !value.empty();
  };
}

// "512", "64K", "256M", "4G"; "0" is no limit.
std::function<bool(Options&, const std::string&)> size(uint64_t Options::*member) {
  return [member](Options& options, const std::string& value) {
    const size_t unit = value.find_first_not_of("0123456789");
    const std::string suffix = unit == std::string::npos ? "" : value.substr(unit);
    const int shift = suffix.empty() ? 0 : suffix == "K" ? 10 : suffix == "M" ? 20 : suffix == "G" ? 30 : -1;
    uint64_t number = 0;
    if (shift < 0 || !absl::SimpleAtoi(value.substr(0, unit), &number) || number > (UINT64_MAX >> shift)) return false;
    options.*member = number << shift;
    return true;
  };
}

const std::vector<Flag>& flags() {
  static const std::vector<Flag> kFlags = {
      {"listen", "HOST:PORT", "address of the gRPC services (127.0.0.1:7070)", text(&Options::listen)},
      {"http", "HOST:PORT", "address of /metrics, /sd/workers, /healthz, /readyz (127.0.0.1:7071)",
       text(&Options::http)},
      {"advertise", "HOST:PORT", "where ranks on other machines reach --listen", text(&Options::advertise)},
      {"data", "DIR", "database and logs; $STATE_DIRECTORY when unset", text(&Options::data)},
      {"store", "URL", "etcd://HOST:PORT[,HOST:PORT...], for several coordinators; default: SQLite in DATA",
       text(&Options::store)},
      {"peers", "LIST", "with --store: HOST:PORT of the other coordinators, with commas between",
       text(&Options::peers)},
      {"etcd-ca", "FILE", "who signed etcd's certificate; without it etcd is talked to in plain text",
       etcd([](store::EtcdAccess& o) { return &o.tls.ca; })},
      {"etcd-cert", "FILE", "our certificate for etcd, if it wants one",
       etcd([](store::EtcdAccess& o) { return &o.tls.cert; })},
      {"etcd-key", "FILE", "its private key", etcd([](store::EtcdAccess& o) { return &o.tls.key; })},
      {"etcd-user", "NAME", "our user there, if it wants one", etcd([](store::EtcdAccess& o) { return &o.user; })},
      {"etcd-password-file", "FILE", "that user's password",
       etcd([](store::EtcdAccess& o) { return &o.password_file; })},
      {"leadership-ttl", "TIME", "with --store: how long a leader counts as alive after its last word (3s)",
       duration(&Options::leadership_ttl)},
      {"run-root", "DIR", "checkpoints and metrics of jobs, seen by every worker (DATA/runs)",
       text(&Options::run_root)},
      {"heartbeat-interval", "TIME", "between a worker's heartbeats (2s)", duration(&Options::heartbeat_interval)},
      {"lease", "TIME", "a worker silent for that long is lost (10s)", duration(&Options::lease)},
      {"stop-grace", "TIME", "a rank has that long after SIGTERM where its job does not say (15s)",
       duration(&Options::stop_grace)},
      {"grow-after", "TIME",
       "an elastic job with fewer replicas than could run is restarted so late at the earliest (5m)",
       duration(&Options::grow_after)},
      {"receipt-deadline", "TIME", "a node has that long after its last rank to tell what is left (60s)",
       duration(&Options::receipt_deadline)},
      {"log-rank-limit", "BYTES", "of one rank's log, in one epoch, the newest so many stay; 0: all (4G)",
       size(&Options::log_rank_bytes)},
      {"log-total-limit", "BYTES", "logs of jobs that are over go beyond so many of all, oldest first; 0: none (0)",
       size(&Options::log_total_bytes)},
      {"queues", "FILE", "queues that jobs wait in (YAML); read again on SIGHUP", text(&Options::queues)},
      {"gang-patience", "TIME", "smaller jobs may pass one whose start nobody can tell for that long (5m)",
       duration(&Options::gang_patience)},
      {"log-level", "LEVEL", "trace, debug, info, warn or error (info)", text(&Options::log_level)},
      {"port-file", "FILE", "written with both addresses, as JSON, once they are bound", text(&Options::port_file)},
      {"reflection", "WHEN", "gRPC reflection: auto (on loopback without --tokens), on or off",
       text(&Options::reflection)},
      {"tls-cert", "FILE", "the coordinator's certificate, PEM; read again when it changes, as are all below",
       security([](SecurityOptions& o) { return &o.tls.cert; })},
      {"tls-key", "FILE", "its private key", security([](SecurityOptions& o) { return &o.tls.key; })},
      {"tls-ca", "FILE", "who signs the certificates of nodes", security([](SecurityOptions& o) { return &o.tls.ca; })},
      {"tokens", "FILE", "hashes of people's tokens, with their roles",
       security([](SecurityOptions& o) { return &o.tokens; })},
      {"revoked", "FILE", "nodes and certificates that are trusted no longer",
       security([](SecurityOptions& o) { return &o.revoked; })},
      {"audit-log", "FILE", "who changed what, or off (DATA/audit.jsonl)",
       security([](SecurityOptions& o) { return &o.audit_log; })},
      {"insecure-listen", nullptr, "listen beyond this machine with nobody at the door",
       [](Options& options, const std::string&) { return options.security.insecure_listen = true; }},
      {"allowed-root", "DIR", "jobs read and write below it only; may be repeated",
       [](Options& options, const std::string& value) {
         options.security.allowed_roots.push_back(value);
         return !value.empty();
       }},
      {"user-rate", "CALLS", "that a person may make a second (100)",
       [](Options& options, const std::string& value) { return absl::SimpleAtod(value, &options.security.user_rate); }},
      {"user-streams", "STREAMS", "that a person may watch at once (64)",
       [](Options& options, const std::string& value) {
         return absl::SimpleAtoi(value, &options.security.user_streams);
       }},
  };
  return kFlags;
}

bool is_address(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  return colon != std::string::npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
         port <= 65535;
}

void check(const Options& options, Mistakes& mistakes) {
  const std::pair<const char*, const std::string*> addresses[] = {{"--listen", &options.listen},
                                                                  {"--http", &options.http}};
  for (const auto& [flag, address] : addresses) {
    if (!is_address(*address)) {
      mistakes.push_back(absl::StrCat(flag, ": '", *address, "' is not HOST:PORT with a port of 0 to 65535"));
    }
  }
  if (!options.advertise.empty() && !is_address(options.advertise)) {
    mistakes.push_back(absl::StrCat("--advertise: '", options.advertise, "' is not HOST:PORT"));
  }
  if (options.data.empty()) mistakes.push_back("--data: a folder is needed, for the database and the logs");
  if (options.lease < 2 * options.heartbeat_interval) {
    mistakes.push_back(absl::StrCat("--lease: ", options.lease.count(), " ms is less than twice --heartbeat-interval (",
                                    options.heartbeat_interval.count(), " ms); one late heartbeat would lose a node"));
  }
  const std::string& level = options.log_level;
  if (level != "trace" && level != "debug" && level != "info" && level != "warn" && level != "error") {
    mistakes.push_back(absl::StrCat("--log-level: '", level, "' is none of trace, debug, info, warn, error"));
  }
  if (options.reflection != "auto" && options.reflection != "on" && options.reflection != "off") {
    mistakes.push_back(absl::StrCat("--reflection: '", options.reflection, "' is none of auto, on, off"));
  }
}

void check_etcd(const Options& options, Mistakes& mistakes) {
  const store::EtcdAccess& access = options.etcd;
  const bool any = access.tls.any() || !access.user.empty() || !access.password_file.empty();
  if (options.store.empty()) {
    if (any) mistakes.push_back("--etcd-ca and the other --etcd options go with --store");
    return;
  }
  const auto endpoints = store::etcd_endpoints(options.store);
  if (!endpoints.ok()) mistakes.push_back(absl::StrCat("--store: ", std::string(endpoints.status().message())));
  if (access.tls.any() && access.tls.ca.empty()) {
    mistakes.push_back("--etcd-ca: is missing; it says who signed etcd's certificate");
  }
  if (access.tls.cert.empty() != access.tls.key.empty()) mistakes.push_back("--etcd-cert and --etcd-key go together");
  if (access.user.empty() != access.password_file.empty()) {
    mistakes.push_back("--etcd-user and --etcd-password-file go together");
  }
  if (access.user.empty() || access.tls.any() || !endpoints.ok()) return;
  for (const std::string& endpoint : *endpoints) {
    if (is_loopback(endpoint)) continue;
    mistakes.push_back(absl::StrCat("--etcd-user: needs --etcd-ca, as ", endpoint,
                                    " is another machine; a password must not travel in plain text"));
    return;
  }
}

void check_standby(const Options& options, Mistakes& mistakes) {
  check_etcd(options, mistakes);
  if (!options.peers.empty()) {
    if (options.store.empty()) mistakes.push_back("--peers: without --store only one coordinator can be");
    if (const std::string wrong = check_addresses(options.peers); !wrong.empty()) {
      mistakes.push_back(absl::StrCat("--peers: ", wrong));
    }
  }
  if (options.leadership_ttl < milliseconds(2'000) || options.leadership_ttl.count() % 1000 != 0) {
    mistakes.push_back(absl::StrCat("--leadership-ttl: ", options.leadership_ttl.count(),
                                    " ms is not a whole number of seconds, at least 2"));
  }
}

bool takes_value(const std::string& name) {
  for (const Flag& flag : flags()) {
    if (name == absl::StrCat("--", flag.name)) return flag.value != nullptr;
  }
  return true;
}

void set_flag(const std::string& name, const std::string* value, Options& options, Mistakes& mistakes) {
  for (const Flag& flag : flags()) {
    if (name != absl::StrCat("--", flag.name)) continue;
    if (flag.value == nullptr) {
      flag.set(options, "");
      if (value != nullptr) mistakes.push_back(absl::StrCat(name, ": takes no value, not '", *value, "'"));
    } else if (value == nullptr) {
      mistakes.push_back(absl::StrCat(name, ": a value is missing (", flag.value, ")"));
    } else if (!flag.set(options, *value)) {
      mistakes.push_back(absl::StrCat(name, ": '", *value, "' is no ", flag.value,
                                      std::string(flag.value) == "TIME"    ? ", such as 500ms, 2s or 1m"
                                      : std::string(flag.value) == "BYTES" ? ", such as 65536, 256M or 4G"
                                                                           : ""));
    }
    return;
  }
  mistakes.push_back(absl::StrCat(name, ": unknown; --help lists the options"));
}

void complete(Options& options) {
  const char* state = std::getenv("STATE_DIRECTORY");  // From systemd.
  if (options.data.empty() && state != nullptr) options.data = state;
  if (options.data.empty()) return;
  // Ranks run elsewhere and in other folders: what they are told must be absolute.
  options.data = std::filesystem::absolute(options.data).lexically_normal().string();
  if (options.run_root.empty()) options.run_root = options.data + "/runs";
  options.run_root = std::filesystem::absolute(options.run_root).lexically_normal().string();
  if (options.security.audit_log.empty()) options.security.audit_log = options.data + "/audit.jsonl";
}

}  // namespace

absl::StatusOr<Options> parse_options(const std::vector<std::string>& arguments) {
  Options options;
  Mistakes mistakes;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "--version") {
      (argument == "--help" ? options.help : options.version) = true;
      continue;
    }
    const size_t equals = argument.find('=');
    if (equals != std::string::npos) {
      const std::string value = argument.substr(equals + 1);
      set_flag(argument.substr(0, equals), &value, options, mistakes);
    } else if (argument.rfind("--", 0) != 0) {
      mistakes.push_back(absl::StrCat("'", argument, "': not an option; there are no other arguments"));
    } else {
      const bool has_value = takes_value(argument) && i + 1 < arguments.size() && arguments[i + 1].rfind("--", 0) != 0;
      set_flag(argument, has_value ? &arguments[i + 1] : nullptr, options, mistakes);
      if (has_value) ++i;
    }
  }
  if (options.help || options.version) return options;
  complete(options);
  check(options, mistakes);
  check_standby(options, mistakes);
  check_security(options.security, options.listen, options.http, options.run_root, mistakes);
  if (!mistakes.empty()) return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
  return options;
}

std::string usage() {
  std::string text = "telar-coordinator: accepts training jobs and hands them to workers.\n\n";
  for (const Flag& flag : flags()) {
    std::string left = absl::StrCat("  --", flag.name, " ", flag.value == nullptr ? "" : flag.value);
    left.resize(std::max<size_t>(left.size() + 1, 30), ' ');
    absl::StrAppend(&text, left, flag.help, "\n");
  }
  absl::StrAppend(&text,
                  "  --version, --help\n\nExit codes: 0 stopped, 2 usage, 3 cannot bind, 4 store unusable,\n"
                  "7 leads no more: another coordinator has taken over.\n");
  return text;
}

bool wants_reflection(const Options& options) {
  if (options.reflection != "auto") return options.reflection == "on";
  return is_loopback(options.listen) && options.security.tokens.empty();
}

}  // namespace telar::server
