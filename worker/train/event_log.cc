#include "worker/train/event_log.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "worker/train/failure.h"

namespace telar::train {

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    return with_class(v1::STORAGE, absl::ErrnoToStatus(errno, absl::StrCat("cannot open events file ", path)));
  }
  return std::unique_ptr<EventLog>(new EventLog(path, fd));
}

EventLog::~EventLog() { ::close(fd_); }

absl::Status EventLog::write(v1::RankEvent event) {
  *event.mutable_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
  std::string line;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(event, &line, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("event as JSON: ", printed.message().ToString()));
  line += '\n';
  ssize_t written = 0;
  do {
    written = ::write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(line.size())) {
    const int problem = written < 0 ? errno : ENOSPC;
    return with_class(v1::STORAGE, absl::ErrnoToStatus(problem, absl::StrCat("cannot append to ", path_)));
  }
  return absl::OkStatus();
}

}  // namespace telar::train
