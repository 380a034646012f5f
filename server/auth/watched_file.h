// A small file that is read at the start, and again whenever it has changed.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace telar::server::auth {

// For one thread.
class WatchedFile {
 public:
  // `take` is given the whole text; after an error from it the reader keeps what it had.
  WatchedFile(std::string path, std::function<absl::Status(const std::string& text)> take);

  // Reads it. NOT_FOUND: it cannot be read. Errors of `take` come back with the path before them.
  absl::Status load();
  // Reads it again if time, size or inode differ from those of the last reading, whether that went well or not.
  absl::Status refresh();
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const std::function<absl::Status(const std::string& text)> take_;
  struct stat seen_ = {};
};

}  // namespace telar::server::auth
