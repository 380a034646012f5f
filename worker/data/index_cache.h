// What it takes reading all of a source to know, remembered in files between the starts of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace telar::data {

// Any thread. A default one remembers nothing.
class IndexCache {
 public:
  IndexCache() = default;
  // Below `folder`, which is made when there is something to remember. `writer`, a name of its own for each process
  // that may write there; empty: only reads.
  IndexCache(std::string folder, std::string writer) : folder_(std::move(folder)), writer_(std::move(writer)) {}

  using Work = std::function<absl::StatusOr<std::vector<uint64_t>>()>;
  // The numbers that `work` makes of the files' bytes and of what `what` says, and of nothing else. Kept numbers are
  // taken only while every file has the size, times and inode that it had, and the same bytes in some places. An index
  // that is damaged, or cannot be written, is as good as none. Errors of `work`.
  absl::StatusOr<std::vector<uint64_t>> numbers(const std::vector<std::string>& files, std::string_view what,
                                                const Work& work) const;

 private:
  std::string folder_, writer_;
};

}  // namespace telar::data
