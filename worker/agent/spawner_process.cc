// The spawner's own side. One thread, no gRPC, nothing that a fork could break.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "worker/agent/spawner.h"

namespace telar::agent {
namespace {

using nlohmann::json;
using Steady = std::chrono::steady_clock;

void complain(const std::string& text) { dprintf(STDERR_FILENO, "%s\n", text.c_str()); }

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Request {
  RankDir directory;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
};

// Between fork and exec. Waits for `go`: until pid.json names this process it must not do anything.
[[noreturn]] void become_rank(Request& request, int log, int go, int trouble) {
  setsid();
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  for (int signal = 1; signal < SIGRTMIN; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  char byte = 0;
  if (read(go, &byte, 1) != 1) _exit(127);  // The spawner died: nobody would know of this rank.
  std::vector<char*> arguments = pointers(request.arguments);
  std::vector<char*> environment = pointers(request.environment);
  execve(arguments[0], arguments.data(), environment.data());
  const int number = errno;
  if (write(trouble, &number, sizeof(number)) != sizeof(number)) _exit(126);
  _exit(127);
}

class SpawnerProcess {
 public:
  SpawnerProcess(int listener, std::chrono::milliseconds idle) : listener_(listener), idle_(idle) {
    sigset_t handled;
    sigemptyset(&handled);
    for (int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&handled, signal);
    sigprocmask(SIG_SETMASK, &handled, nullptr);
    signals_ = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  void run() {
    Steady::time_point busy = Steady::now();
    while (true) {
      if (children() || connection_ >= 0) busy = Steady::now();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(busy + idle_ - Steady::now()).count();
      if (ending_ && !children()) return;
      if (left <= 0) return;
      // A new daemon is let in only when the last one's requests are all read: none may surprise it later.
      pollfd waits[3] = {
          {signals_, POLLIN, 0}, {connection_, POLLIN, 0}, {connection_ < 0 ? listener_ : -1, POLLIN, 0}};
      if (poll(waits, 3, static_cast<int>(std::min<long>(left, 1000))) < 0 && errno != EINTR) return;
      read_signals();
      reap();
      if (waits[1].revents != 0) serve();
      if (waits[2].revents != 0) connection_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    }
  }

 private:
  static bool children() {
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;  // ECHILD when there is none.
  }

  void read_signals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGTERM) ending_ = true;  // The machine goes down; the ranks got theirs too.
    }
  }

  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto found = ranks_.find(pid);
      if (found == ranks_.end()) continue;  // Some rank's orphan.
      record(found->second, status);
      ranks_.erase(found);
    }
  }

  static void record(const RankDir& directory, int status) {
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // A full disk must not lose the code at once; the daemon would call it a crash.
    for (int attempt = 0; attempt < 5; ++attempt) {
      const absl::Status written = directory.write_exit({code, ""});
      if (written.ok()) return;
      complain(std::string(written.message()));
      usleep(20'000);
    }
  }

  void serve() {
    std::string message(512 << 10, '\0');
    const ssize_t size = recv(connection_, message.data(), message.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) {
      close(connection_);
      connection_ = -1;
      return;
    }
    message.resize(static_cast<size_t>(size));
    const std::string answer = handle(message);
    if (send(connection_, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) complain("an answer was not taken");
  }

  std::string handle(const std::string& message) {
    try {
      const json request = json::parse(message);
      const auto op = request.at("op").get<std::string>();
      if (op == "sync") {
        reap();
        return json{{"pid", getpid()}}.dump();
      }
      if (op == "dismiss") {
        ending_ = ending_ || !children();
        return json{{"pid", getpid()}}.dump();
      }
      if (op != "start") return json{{"error", "unknown op " + op}}.dump();
      Request start{RankDir(request.at("directory").get<std::string>()),
                    request.at("arguments").get<std::vector<std::string>>(),
                    request.at("environment").get<std::vector<std::string>>()};
      const auto pid = spawn(start);
      return pid.ok() ? json{{"pid", *pid}}.dump()
                      : json{{"error", std::string(pid.status().message())}}.dump(-1, ' ', false,
                                                                                  json::error_handler_t::replace);
    } catch (const json::exception& problem) {
      return json{{"error", problem.what()}}.dump(-1, ' ', false, json::error_handler_t::replace);
    }
  }

  absl::StatusOr<int> spawn(Request& request) {
    if (request.arguments.empty()) return absl::InvalidArgumentError("no program");
    const std::string log_path = request.directory.log_path();
    const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) return absl::UnavailableError("cannot open " + log_path + ": " + std::strerror(errno));
    int go[2] = {-1, -1}, trouble[2] = {-1, -1};
    absl::StatusOr<int> result = absl::UnavailableError("no pipe for a new process");
    if (pipe2(go, O_CLOEXEC) == 0 && pipe2(trouble, O_CLOEXEC) == 0) {
      const pid_t pid = fork();
      if (pid == 0) {
        close(go[1]);
        become_rank(request, log, go[0], trouble[1]);
      }
      close(trouble[1]);
      trouble[1] = -1;
      result = pid < 0 ? absl::StatusOr<int>(absl::UnavailableError(std::string("cannot fork: ") + strerror(errno)))
                       : release(request, pid, go[1], trouble[0]);
    }
    for (int file : {log, go[0], go[1], trouble[0], trouble[1]}) {
      if (file >= 0) close(file);
    }
    return result;
  }

  // Writes pid.json, lets the child go on, and waits for the outcome of its exec.
  absl::StatusOr<int> release(const Request& request, pid_t pid, int go, int trouble) {
    RankProcess process;
    if (const auto id = identify(pid)) process.id = *id;
    std::string name = std::filesystem::path(request.directory.path()).lexically_normal().string();
    name = "telar-" + std::to_string(std::hash<std::string>{}(name));
    process.cgroup = make_cgroup(name);
    if (!process.cgroup.empty() && !enter_cgroup(process.cgroup, pid)) {
      rmdir(process.cgroup.c_str());
      process.cgroup.clear();
    }
    const absl::Status written = request.directory.write_process(process);
    int number = 0;
    if (written.ok() && write(go, "g", 1) == 1) {
      ssize_t size = 0;
      while ((size = read(trouble, &number, sizeof(number))) < 0 && errno == EINTR) {
      }
      if (size == 0) {
        ranks_.emplace(pid, request.directory);
        return pid;
      }
    }
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    if (!process.cgroup.empty()) rmdir(process.cgroup.c_str());
    unlink((request.directory.path() + "/pid.json").c_str());
    if (!written.ok()) return written;
    return absl::InternalError("cannot run " + request.arguments[0] + ": " + std::strerror(number));
  }

  const int listener_;
  const std::chrono::milliseconds idle_;
  int signals_ = -1;
  int connection_ = -1;
  bool ending_ = false;
  std::map<pid_t, RankDir> ranks_;
};

}  // namespace

void run_spawner(int listener, std::chrono::milliseconds idle) { SpawnerProcess(listener, idle).run(); }

}  // namespace telar::agent
