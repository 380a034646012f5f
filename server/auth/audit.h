// The audit log: who changed what, and whom was said no to. JSON lines, appended.
//
// A line is written before its call is answered, so that it survives the death of the daemon; it is on the disk within
// a second. A disk that takes no more does not stop the service, for then nobody could end what fills it: what could
// not be written is counted, and the next line that can be tells of it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/auth/caller.h"

namespace telar::server::auth {

struct AuditEntry {
  const Caller* caller = nullptr;  // Null: unknown.
  std::string peer;                // "ipv4:10.0.0.1:4242"
  std::string method;              // "telar.v1.Jobs/CreateJob"
  std::string resource;            // "projects/default/jobs/k3j9x2ab", a node, or empty.
  std::string request_id;
  std::string code;    // "OK", "PERMISSION_DENIED"
  std::string reason;  // Of a refusal by the guard.
};

// Thread safe.
class AuditLog {
 public:
  struct Options {
    std::string path;
    uint64_t most_bytes = 64 << 20;  // Then it becomes <path>.1, and so on.
    int keep = 8;                    // Such files.
  };
  // Goes on behind what is there. PERMISSION_DENIED: the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<AuditLog>> open(const Options& options, const Clock* clock);
  ~AuditLog();

  void write(const AuditEntry& entry);
  // Puts what was written on the disk. Call it about once a second.
  void flush();
  uint64_t lost() const;  // Entries that could not be written.

 private:
  AuditLog(Options options, const Clock* clock) : options_(std::move(options)), clock_(clock) {}
  // All below want mutex_ held.
  absl::Status open_file();
  void append(const std::string& line);
  void rotate();

  const Options options_;
  const Clock* const clock_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  int file_ = -1;
  uint64_t size_ = 0;
  bool dirty_ = false;
  uint64_t lost_ = 0;
  uint64_t untold_ = 0;      // Of those, since the last line.
  uint64_t suppressed_ = 0;  // Refusals of strangers, more than kMostRefusals in one second.
  int64_t second_ = 0;       // The one that refusals_ counts in.
  int refusals_ = 0;
};

// Refusals of callers that nobody knows that are written in one second: whoever cannot log in must not wash the log
// out.
inline constexpr int kMostRefusals = 20;

}  // namespace telar::server::auth
