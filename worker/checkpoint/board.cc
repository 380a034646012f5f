#include "worker/checkpoint/board.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace telar::checkpoint {
namespace {

using std::chrono::milliseconds;

// Between two looks; doubles, so that a long wait does not weigh on the file system.
constexpr milliseconds kFirstPause{2}, kLongestPause{250};
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
constexpr std::string_view kUnfinished = ".post-";

}  // namespace

std::string Board::draft_of(const std::string& name) const { return path_of(std::string(kUnfinished) + name); }

absl::Status Board::post(const std::string& name, std::string_view text) {
  return publish_file(files_, draft_of(name), path_of(name), text);
}

absl::Status Board::prepare(const std::string& name, std::string_view text) {
  return write_file(files_, draft_of(name), text);
}

absl::Status Board::show(const std::string& name) { return files_.rename(draft_of(name), path_of(name)); }

absl::StatusOr<std::string> Board::read(const std::string& name) const {
  return read_file(files_, path_of(name), kMostBytes);
}

absl::Status Board::wait(const Enough& enough, milliseconds patience, std::vector<std::string>& names) {
  const auto deadline = files_.now() + patience;
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    auto listed = files_.list(path_);
    if (listed.ok()) {
      seen_ = true;
      names = *std::move(listed);
      std::erase_if(names, [](const std::string& name) { return name.starts_with(kUnfinished); });
      if (enough(names)) return absl::OkStatus();
    } else if (!absl::IsNotFound(listed.status())) {
      return listed.status();
    } else if (seen_) {
      return absl::AbortedError(absl::StrCat(path_, ": taken away by another save"));
    }
    if (give_up_ != nullptr && give_up_->load()) return absl::CancelledError(absl::StrCat(path_, ": given up"));
    const auto left = std::chrono::ceil<milliseconds>(deadline - files_.now());
    if (left <= milliseconds(0)) return absl::DeadlineExceededError(absl::StrCat(path_, ": waited in vain"));
    files_.await_change(path_, std::min(pause, left));
  }
}

}  // namespace telar::checkpoint
