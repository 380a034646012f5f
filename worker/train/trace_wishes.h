// The steps of which somebody wants traces, as the worker writes them down while the rank runs: a RankWishes in JSON,
// always whole, replaced by rename (ADR 1).
#pragma once

#include <sys/stat.h>
#include <cstdint>
#include <string>
#include <vector>

namespace telar::train {

// Threads: one caller.
class TraceWishes {
 public:
  // `path` empty: nobody wishes anything.
  explicit TraceWishes(std::string path) : path_(std::move(path)) {}

  // What the file says now. Cheap where it has not changed; what cannot be read wishes nothing.
  const std::vector<uint64_t>& look();

 private:
  const std::string path_;
  struct stat seen_ = {};
  std::vector<uint64_t> steps_;
};

}  // namespace telar::train
