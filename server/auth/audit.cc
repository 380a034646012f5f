#include "server/auth/audit.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace telar::server::auth {
namespace {

constexpr size_t kMostText = 512;  // Of what a caller sent.

std::string cut(const std::string& text) { return text.substr(0, kMostText); }

std::string time_text(Clock::Wall time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(time), absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::open(const Options& options, const Clock* clock) {
  std::unique_ptr<AuditLog> log(new AuditLog(options, clock));
  std::lock_guard<std::mutex> hold(log->mutex_);
  if (absl::Status status = log->open_file(); !status.ok()) return status;
  return log;
}

AuditLog::~AuditLog() {
  flush();
  if (file_ >= 0) close(file_);
}

absl::Status AuditLog::open_file() {
  file_ = ::open(options_.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  struct stat facts = {};
  if (file_ < 0 || fstat(file_, &facts) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("audit log ", options_.path, " cannot be written: ", strerror(errno)));
  }
  size_ = static_cast<uint64_t>(facts.st_size);
  return absl::OkStatus();
}

void AuditLog::write(const AuditEntry& entry) {
  const Clock::Wall now = clock_->wall();
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  nlohmann::ordered_json line = {{"time", time_text(now)}};
  const bool named = entry.caller != nullptr && !entry.caller->name.empty();
  if (named) line[entry.caller->kind == Caller::Kind::kNode ? "node" : "user"] = entry.caller->name;
  line["peer"] = entry.peer;
  line["method"] = entry.method;
  if (!entry.resource.empty()) line["resource"] = cut(entry.resource);
  if (!entry.request_id.empty()) line["request_id"] = cut(entry.request_id);
  line["code"] = entry.code;
  if (!entry.reason.empty()) line["reason"] = entry.reason;

  std::lock_guard<std::mutex> hold(mutex_);
  if (second != second_) refusals_ = 0;
  second_ = second;
  if (entry.caller == nullptr && ++refusals_ > kMostRefusals) {
    ++suppressed_;
    return;
  }
  if (suppressed_ > 0) line["refusals_left_out"] = suppressed_;
  if (untold_ > 0) line["lost_before"] = untold_;
  append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void AuditLog::append(const std::string& line) {
  if (size_ + line.size() > options_.most_bytes && size_ > 0) rotate();
  const ssize_t written = file_ < 0 ? -1 : ::write(file_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    size_ += line.size();
    dirty_ = true;
    untold_ = suppressed_ = 0;
    return;
  }
  if (untold_ == 0) spdlog::error("audit log {}: {}; calls go on unrecorded", options_.path, strerror(errno));
  if (written > 0 && ftruncate(file_, static_cast<off_t>(size_)) != 0) size_ += static_cast<uint64_t>(written);
  ++lost_;
  ++untold_;
}

void AuditLog::rotate() {
  fdatasync(file_);
  close(file_);
  for (int i = options_.keep - 1; i >= 1; --i) {
    std::rename(absl::StrCat(options_.path, ".", i).c_str(), absl::StrCat(options_.path, ".", i + 1).c_str());
  }
  std::rename(options_.path.c_str(), absl::StrCat(options_.path, ".1").c_str());
  if (absl::Status status = open_file(); !status.ok()) spdlog::error("{}", std::string(status.message()));
}

void AuditLog::flush() {
  int copy = -1;
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!dirty_) return;
    dirty_ = false;
    copy = dup(file_);  // Writers must not wait for the disk.
  }
  if (copy < 0) return;
  if (fdatasync(copy) != 0) spdlog::error("audit log {}: {}", options_.path, strerror(errno));
  close(copy);
}

uint64_t AuditLog::lost() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return lost_;
}

}  // namespace telar::server::auth
