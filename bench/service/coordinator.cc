#include "bench/service/coordinator.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

extern char** environ;

namespace telar::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::string slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string http_get(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port)) return "";
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string answer;
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
  if (connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      write(connection, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char part[65536];
    for (ssize_t count; (count = read(connection, part, sizeof(part))) > 0;) {
      answer.append(part, static_cast<size_t>(count));
    }
  }
  close(connection);
  return answer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::start(const std::string& program, const std::string& folder,
                                                                const std::string& store) {
  std::string pattern = folder + "/telar-bench-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) return absl::UnavailableError(absl::StrCat("cannot make ", pattern));
  std::unique_ptr<Coordinator> coordinator(new Coordinator(program, pattern, store));
  if (absl::Status status = coordinator->spawn(); !status.ok()) return status;
  return coordinator;
}

Coordinator::~Coordinator() {
  end();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

absl::Status Coordinator::spawn() {
  const std::string ports = folder_ + "/ports.json";
  http_.clear();
  std::filesystem::remove(ports);
  std::vector<std::string> arguments = {
      program_, "--data",      folder_ + "/data", "--listen", address_.empty() ? "127.0.0.1:0" : address_,
      "--http", "127.0.0.1:0", "--port-file",     ports,      "--log-level",
      "warn"};
  if (!store_.empty()) arguments.insert(arguments.end(), {"--store", store_});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, (folder_ + "/log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0644);
  const int problem = posix_spawn(&pid_, program_.c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (problem != 0) return absl::NotFoundError(absl::StrCat("cannot run ", program_));
  const auto end = SteadyClock::now() + std::chrono::seconds(60);
  // A standby has ports, but no metrics.
  for (bool serves = false; !serves;
       serves = !http_.empty() && metrics().count("telar_store_transactions_total") != 0) {
    const bool ended = waitpid(pid_, nullptr, WNOHANG) == pid_;
    if (ended) pid_ = 0;
    if (ended || SteadyClock::now() > end) {
      return absl::UnavailableError(absl::StrCat("no start: ", slurp(folder_ + "/log")));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto places = nlohmann::json::parse(slurp(ports), nullptr, /*allow_exceptions=*/false);
    if (places.is_discarded()) continue;
    address_ = places["listen"];
    http_ = places["http"];
  }
  return absl::OkStatus();
}

void Coordinator::end() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

absl::StatusOr<double> Coordinator::kill_and_start() {
  end();
  const auto start = SteadyClock::now();
  if (absl::Status status = spawn(); !status.ok()) return status;
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

double Coordinator::cpu_seconds() const {
  const std::string stat = slurp(absl::StrCat("/proc/", pid_, "/stat"));
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint64_t Coordinator::resident_bytes() const {
  std::istringstream fields(slurp(absl::StrCat("/proc/", pid_, "/statm")));
  uint64_t all = 0, resident = 0;
  fields >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::map<std::string, double> Coordinator::metrics() const {
  std::map<std::string, double> values;
  std::istringstream lines(http_get(http_, "/metrics"));
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
    if (absl::SimpleAtod(line.substr(space + 1), &value)) values[line.substr(0, space)] = value;
  }
  return values;
}

}  // namespace telar::bench
