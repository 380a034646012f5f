#include "worker/agent/spawner.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace telar::agent {
namespace {

using nlohmann::json;
constexpr size_t kMostMessage = 256 << 10;  // Arguments and environment of one rank.

absl::Status failed(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// A socket path has at most 107 characters; through the directory's descriptor any state directory will do.
class SocketAddress {
 public:
  explicit SocketAddress(const std::string& directory)
      : directory_(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    address_.sun_family = AF_UNIX;
    snprintf(address_.sun_path, sizeof(address_.sun_path), "/proc/self/fd/%d/spawner.sock", directory_);
  }
  ~SocketAddress() { close(directory_); }
  SocketAddress(const SocketAddress&) = delete;
  SocketAddress& operator=(const SocketAddress&) = delete;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  const char* path() const { return address_.sun_path; }

 private:
  int directory_;
  sockaddr_un address_{};
};

int seqpacket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

absl::StatusOr<int> listen_in(const std::string& directory) {
  const SocketAddress address(directory);
  unlink(address.path());
  const int listener = seqpacket();
  if (listener < 0) return failed("cannot make a socket");
  if (bind(listener, address.get(), sizeof(sockaddr_un)) != 0 || listen(listener, 4) != 0) {
    const absl::Status status = failed(absl::StrCat("cannot listen on ", directory, "/spawner.sock"));
    close(listener);
    return status;
  }
  return listener;
}

// What the child does before it serves: nothing of the daemon's terminal, files, session or lock stays with it.
[[noreturn]] void become_spawner(int listener, const std::string& directory, std::chrono::milliseconds idle) {
  setsid();
  prctl(PR_SET_NAME, "telar-spawner");
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // Orphans of ranks come here and are reaped.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int log = open((directory + "/spawner.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  dup2(log >= 0 ? log : null, STDERR_FILENO);
  const int kept = dup2(listener, 3);
  close_range(4, ~0U, 0);
  fcntl(kept, F_SETFD, FD_CLOEXEC);
  run_spawner(kept, idle);
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Spawner>> Spawner::connect_or_fork(const StateDir& state,
                                                                  std::chrono::milliseconds idle) {
  if (auto found = connect(state.path()); found.ok()) return found;
  const auto listener = listen_in(state.path());
  if (!listener.ok()) return listener.status();
  const pid_t child = fork();
  if (child == 0) become_spawner(*listener, state.path(), idle);
  close(*listener);
  if (child < 0) return failed("cannot fork the spawner");
  return connect(state.path());
}

absl::StatusOr<std::unique_ptr<Spawner>> Spawner::connect(const std::string& directory) {
  const SocketAddress address(directory);
  const int connection = seqpacket();
  if (connection < 0) return failed("cannot make a socket");
  std::unique_ptr<Spawner> spawner(new Spawner(connection));
  const timeval patience{10, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  const int size = 2 * kMostMessage;
  setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
  if (::connect(connection, address.get(), sizeof(sockaddr_un)) != 0) {
    return failed(absl::StrCat("cannot connect to ", directory, "/spawner.sock"));
  }
  if (absl::Status status = spawner->sync(); !status.ok()) return status;  // It may have been about to end.
  return spawner;
}

Spawner::~Spawner() { close(socket_); }

absl::StatusOr<std::string> Spawner::call(const std::string& request) {
  if (send(socket_, request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    if (errno == EMSGSIZE) {
      return absl::InvalidArgumentError(
          absl::StrCat("arguments and environment of a rank are ", request.size(), " bytes, too many for one message"));
    }
    return failed("the spawner does not take requests");
  }
  std::string answer(4096, '\0');
  ssize_t size = 0;
  while ((size = recv(socket_, answer.data(), answer.size(), 0)) < 0 && errno == EINTR) {
  }
  if (size < 0) return failed("the spawner does not answer");
  if (size == 0) return absl::UnavailableError("the spawner has ended");
  answer.resize(static_cast<size_t>(size));
  return answer;
}

absl::Status Spawner::sync() {
  const auto answer = call(json{{"op", "sync"}}.dump());
  if (!answer.ok()) return answer.status();
  const json value = json::parse(*answer, nullptr, false);
  if (value.is_object() && value.contains("pid")) pid_ = value["pid"].get<int>();
  return absl::OkStatus();
}

void Spawner::dismiss() {
  call(json{{"op", "dismiss"}}.dump()).IgnoreError();  // It may have ended by itself.
}

absl::StatusOr<RankProcess> Spawner::start(const RankDir& directory, const std::vector<std::string>& arguments,
                                           const std::vector<std::string>& environment) {
  const json request = {
      {"op", "start"}, {"directory", directory.path()}, {"arguments", arguments}, {"environment", environment}};
  const auto answer = call(request.dump(-1, ' ', false, json::error_handler_t::replace));
  if (!answer.ok()) return answer.status();
  const json value = json::parse(*answer, nullptr, false);
  if (!value.is_object()) return absl::UnavailableError("the spawner's answer is not JSON");
  if (value.contains("error")) return absl::InternalError(value["error"].get<std::string>());
  const auto process = directory.read_process();
  if (!process) return absl::InternalError(absl::StrCat(directory.path(), "/pid.json is gone"));
  return *process;
}

}  // namespace telar::agent
