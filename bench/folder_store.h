// How ranks that share a folder find each other.
#pragma once

#include <filesystem>

#include "worker/backend/collectives.h"

namespace telar::bench {

// A file a key. Threads and processes: any. The folder is there, and empty before each gang's start.
class FolderStore final : public backend::KeyValueStore {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  absl::Status put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::vector<std::string>> get(std::span<const std::string> keys,
                                               std::chrono::milliseconds timeout) override;

 private:
  std::filesystem::path path_of(const std::string& key) const;
  const std::filesystem::path folder_;
};

}  // namespace telar::bench
