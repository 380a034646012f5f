#include "worker/train/event_log.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "absl/strings/str_cat.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {
constexpr size_t kMostWaiting = 4 << 20;
constexpr std::chrono::milliseconds kLook(100);
}  // namespace

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    return with_class(v1::STORAGE, absl::ErrnoToStatus(errno, absl::StrCat("cannot open events file ", path)));
  }
  return std::unique_ptr<EventLog>(new EventLog(path, fd));
}

EventLog::~EventLog() { ::close(fd_); }

absl::StatusOr<std::string> EventLog::line_of(v1::RankEvent event) {
  *event.mutable_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
  std::string line;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(event, &line, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("event as JSON: ", printed.message().ToString()));
  return line + '\n';
}

absl::Status EventLog::write(v1::RankEvent event) {
  const auto line = line_of(event);
  if (!line.ok()) return line.status();
  const bool last = event.has_finished() || event.has_failure();
  std::unique_lock lock(mutex_);
  // While nothing finds room here either, one word about all of it is enough.
  if (lost_log_ && (waiting_.empty() || last)) tell_lost_log();
  if (!event.has_step() || waiting_.size() < kMostWaiting) waiting_ += *line;
  absl::Status status = flush();
  if (!last) return status;
  // Nobody hears of it later.
  for (auto left = patience_; status.ok() && !waiting_.empty() && left.count() > 0; left -= kLook) {
    std::this_thread::sleep_for(kLook);
    status = flush();
  }
  if (!status.ok() || waiting_.empty()) return status;
  return with_class(v1::STORAGE, absl::ErrnoToStatus(ENOSPC, absl::StrCat("cannot append to ", path_)));
}

void EventLog::tell_lost_log() {
  v1::RankEvent event;
  event.mutable_log_lost()->set_bytes(lost_log_());
  if (event.log_lost().bytes() == 0) return;
  if (const auto line = line_of(event); line.ok()) waiting_ += *line;
}

absl::Status EventLog::flush() {
  while (!waiting_.empty()) {
    const ssize_t written = ::write(fd_, waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == ENOSPC || errno == EDQUOT)) return absl::OkStatus();
    if (written < 0) {
      return with_class(v1::STORAGE, absl::ErrnoToStatus(errno, absl::StrCat("cannot append to ", path_)));
    }
    waiting_.erase(0, static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace telar::train
