// The door of the coordinator: who calls, whether they may, not too much of it, and a line in the audit log.
//
// Knows no gRPC: server/rpc/guarded_services.h puts it before every method.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "google/protobuf/message.h"
#include "server/auth/access.h"
#include "server/auth/audit.h"
#include "server/auth/caller.h"
#include "server/auth/limits.h"
#include "server/auth/revoked.h"
#include "server/auth/tokens.h"
#include "server/auth/watched_file.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::auth {

struct GuardOptions {
  std::string tokens;           // Empty: no authentication. See tokens.h.
  std::string revoked;          // Empty: none. See revoked.h.
  AuditLog::Options audit;      // With an empty path: none is kept.
  double calls_a_second = 100;  // Of a person; without authentication nobody is limited. Nodes never are.
  double burst = 200;
  int streams = 64;
};

// Who is at the other end, as the transport tells it.
struct Peer {
  std::string address;
  std::vector<std::string> uris;  // Of its certificate, which the CA signed.
  std::string certificate;        // PEM; empty: none was shown.
  std::string authorization;      // Of the call: "Bearer <token>".
};

class Visit;

// Thread safe. It owns a thread that looks after the files.
class Guard {
 public:
  using FindJob = std::function<absl::StatusOr<v1::Job>(const std::string& name)>;
  // Errors name the file, and every faulty line. `clock` and what `find_job` uses must outlive it.
  static absl::StatusOr<std::unique_ptr<Guard>> open(const GuardOptions& options, const Clock* clock, FindJob find_job);
  ~Guard();

  // Takes up changed files, and puts the audit log on the disk; the thread does so once a second. A file that cannot be
  // used leaves what it said before in force.
  void refresh();

  // Of a caller that was admitted: whether it still is, and speaks for `node`. For streams, with every message.
  absl::Status check_node(const Caller& caller, const std::string& node) const;
  bool authenticates() const { return !options_.tokens.empty(); }

  struct Figures {
    std::map<std::string, uint64_t> refused;  // Reason -> calls.
    uint64_t audit_lost = 0;
    uint64_t reload_failures = 0;
  };
  Figures figures() const;

 private:
  friend class Visit;
  Guard(GuardOptions options, const Clock* clock, FindJob find_job);
  absl::StatusOr<Caller> authenticate(const Peer& peer, const Access& access) const;
  absl::StatusOr<Caller> person(const Peer& peer) const;
  absl::StatusOr<Caller> node(const Peer& peer) const;
  absl::Status authorize(const Caller& caller, const Access& access, const google::protobuf::Message* request) const;
  absl::Status check_own(const Caller& caller, const std::string& job) const;
  absl::Status check_dependencies(const Caller& caller, const Access& access,
                                  const google::protobuf::Message& request) const;
  absl::Status check_placed(const Caller& caller, const google::protobuf::Message& request) const;
  void count_refusal(const std::string& reason);
  void watch();
  void end_streams();

  const GuardOptions options_;
  const Clock* const clock_;
  const FindJob find_job_;
  std::unique_ptr<AuditLog> audit_;
  RateLimit rate_;
  StreamLimit streams_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Tokens tokens_;  // Guarded by mutex_, as is all below but the thread.
  Revoked revoked_;
  std::map<std::string, uint64_t> refused_;
  bool stopping_ = false;
  struct Stream {
    std::string token;  // Its hash.
    std::function<void()> end;
  };
  std::map<const Visit*, Stream> open_streams_;      // Of people.
  std::mutex refresh_mutex_;                         // Taken before mutex_.
  std::vector<std::unique_ptr<WatchedFile>> files_;  // Guarded by refresh_mutex_ once open() is over.
  std::atomic<uint64_t> reload_failures_{0};
  std::thread thread_;
};

// One call, from its arrival to its answer. The guard must outlive it.
class Visit {
 public:
  // Admits it, or status() says why not: UNAUTHENTICATED, PERMISSION_DENIED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  // `method`: "telar.v1.Jobs/GetJob". `request` is null for a stream of requests: check_node() then has to see each.
  // `end_stream`, of a stream of answers, is called from another thread when its person's token is no longer good.
  Visit(Guard* guard, const Peer& peer, const std::string& method, const google::protobuf::Message* request,
        std::function<void()> end_stream);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  const absl::Status& status() const { return status_; }
  const Caller& caller() const { return caller_; }
  void set_resource(const std::string& name) { entry_.resource = name; }  // What the call has made.
  // Before the answer goes out, with its status.
  void end(const absl::Status& answer);

 private:
  absl::Status admit(const Peer& peer, const google::protobuf::Message* request, std::function<void()> end_stream);

  Guard* const guard_;
  const Access* const access_;
  AuditEntry entry_;
  Caller caller_;
  bool known_ = false;
  bool stream_ = false;  // Holds one of the caller's streams.
  absl::Status status_;
};

}  // namespace telar::server::auth
