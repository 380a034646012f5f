#include "bench/folder_store.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace telar::bench {
namespace {

constexpr std::chrono::milliseconds kPoll{5};  // Other machines' files can only be looked for.

}  // namespace

std::filesystem::path FolderStore::path_of(const std::string& key) const {
  return folder_ / absl::StrReplaceAll(key, {{"/", "-"}});
}

// By rename, so that whoever sees the file sees all of it.
absl::Status FolderStore::put(const std::string& key, const std::string& value) {
  const std::filesystem::path path = path_of(key), unfinished = absl::StrCat(path.string(), ".", getpid());
  std::ofstream file(unfinished, std::ios::binary);
  file << value;
  file.close();
  std::error_code failed;
  if (file) std::filesystem::rename(unfinished, path, failed);
  if (file && !failed) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path.string()));
}

absl::StatusOr<std::vector<std::string>> FolderStore::get(std::span<const std::string> keys,
                                                          std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    std::ifstream file(path_of(key), std::ios::binary);
    while (!file) {
      if (std::chrono::steady_clock::now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("missing key ", key, " in ", folder_.string()));
      }
      std::this_thread::sleep_for(kPoll);
      file.open(path_of(key), std::ios::binary);
    }
    values.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return values;
}

}  // namespace telar::bench
