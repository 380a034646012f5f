#include "server/auth/watched_file.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::server::auth {
namespace {

bool same(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

WatchedFile::WatchedFile(std::string path, std::function<absl::Status(const std::string& text)> take)
    : path_(std::move(path)), take_(std::move(take)) {}

absl::Status WatchedFile::load() {
  struct stat before = {};
  stat(path_.c_str(), &before);  // Before it is read: a change meanwhile is seen the next time.
  seen_ = before;
  std::ifstream file(path_, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad()) return absl::NotFoundError(absl::StrCat(path_, " cannot be read"));
  const absl::Status status = take_(text.str());
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(path_, ": ", status.message()));
}

absl::Status WatchedFile::refresh() {
  struct stat now = {};
  stat(path_.c_str(), &now);
  return same(now, seen_) ? absl::OkStatus() : load();
}

}  // namespace telar::server::auth
