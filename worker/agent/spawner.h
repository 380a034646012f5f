// The process that is the parent of all ranks, so that the daemon may die and come back.
//
// It is forked at the start of main, before any thread, because a process that runs gRPC must not fork. It starts and
// reaps; it decides nothing. One daemon at a time talks to it over <state>/spawner.sock (SOCK_SEQPACKET, a JSON object
// a message, each answered in order):
//   {"op": "sync"}                                                 -> {"pid": spawner's}
//   {"op": "start", "directory", "arguments": [], "environment": []} -> {"pid": rank's} or {"error": text}
//   {"op": "dismiss"}                                              -> {"pid": spawner's}, and it ends if it has no
//   child
// "sync" answers after every child that was dead by then has its exit.json. It ends when it has had neither a child
// nor a daemon for `idle`.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/agent/rank_dir.h"

namespace telar::agent {

// The daemon's end. Not thread safe.
class Spawner {
 public:
  // Connects to the living spawner of this state directory or forks one. Call while the process has one thread.
  static absl::StatusOr<std::unique_ptr<Spawner>> connect_or_fork(const StateDir& state,
                                                                  std::chrono::milliseconds idle);
  ~Spawner();
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  // Starts arguments[0] in a session of its own, stdin /dev/null, stdout and stderr appended to the directory's log;
  // pid.json is there before the program runs. UNAVAILABLE: the spawner is gone; other codes: this start failed.
  absl::StatusOr<RankProcess> start(const RankDir& directory, const std::vector<std::string>& arguments,
                                    const std::vector<std::string>& environment);
  // See the protocol. UNAVAILABLE: the spawner is gone.
  absl::Status sync();
  int pid() const { return pid_; }  // Of the other end.
  // This daemon goes and nothing it started is left: the spawner need not wait for another daemon. Without effect
  // while it has ranks.
  void dismiss();

 private:
  explicit Spawner(int socket) : socket_(socket) {}
  static absl::StatusOr<std::unique_ptr<Spawner>> connect(const std::string& directory);
  absl::StatusOr<std::string> call(const std::string& request);

  int socket_;
  int pid_ = 0;
};

// The other end: serves `listener` until idle. Never returns an error to anybody; writes its troubles to stderr.
void run_spawner(int listener, std::chrono::milliseconds idle);

}  // namespace telar::agent
