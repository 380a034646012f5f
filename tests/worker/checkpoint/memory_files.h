// A file system in memory that forgets what was not synced.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "worker/checkpoint/file_system.h"

namespace telar::checkpoint {

inline constexpr const char* kRun = "/runs/one";  // A run's folder, where a test needs one.

// Faults are counted over the operations that change something: create, append, sync, close, make_directory,
// sync_directory, rename, remove. Any number of threads may use the file system; the rest is for one, while no other
// does.
class MemoryFiles : public FileSystem {
 public:
  enum class Fault {
    kNone,
    kPowerCut,  // Operation `at` and all later ones fail; an append does half of its work.
    kDiskFull,  // The same for create, append and make_directory only: what is there can still be removed.
    kIoError,   // Operation `at` alone fails.
  };
  void plan(Fault fault, int64_t at) { fault_ = fault, at_ = at, operations_ = 0; }
  int64_t operations() const { return operations_; }

  // A device of so many bytes: what does not fit fails behind what does, and what is removed leaves its place.
  void set_space(uint64_t bytes) { space_ = bytes; }
  uint64_t most_used() const { return most_used_; }  // Ever, of those bytes.

  // The machine comes back. Each directory is either as it was last synced or as it was left, each file has what was
  // last synced and some part of the rest; `random` decides. nullptr: nothing that was not synced survives.
  void restart(std::mt19937_64* random);

  // From now on time stands still, except that when all of so many threads wait for a change it passes at once: a
  // deadline is missed when nothing can happen any more, and never else. Each of them leaves in the end.
  void play_time(int threads);
  void leave();

  // The bytes of a file, to be damaged; nullptr when there is none.
  std::string* bytes(const std::string& path);
  // Every file below `directory`, full paths.
  std::vector<std::string> all_files(const std::string& directory);

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override;
  absl::Status make_directory(const std::string& path) override;
  absl::Status sync_directory(const std::string& path) override;
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status remove_file(const std::string& path) override;
  absl::Status remove_directory(const std::string& path) override;
  void await_change(const std::string& directory, std::chrono::milliseconds most) override;
  std::chrono::steady_clock::time_point now() override;

 private:
  friend class MemoryWritable;
  struct Node {
    bool directory = false;
    std::string data, synced_data;
    std::map<std::string, std::shared_ptr<Node>> entries, synced_entries;
  };
  using NodePointer = std::shared_ptr<Node>;

  // Of what follows the lock is held.
  // The fault that strikes this operation, if any.
  absl::Status strike(const std::string& what, bool needs_space);
  void wake();
  static uint64_t used_by(const Node& node);
  NodePointer find(const std::string& path);
  void restart_node(Node& node, std::mt19937_64* random);

  std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  uint64_t changes_ = 0;
  bool plays_time_ = false;
  std::chrono::steady_clock::time_point played_;
  int threads_ = 0;
  int waiting_ = 0;  // Of them, since the last change.
  NodePointer root_ = std::make_shared<Node>(Node{.directory = true});
  Fault fault_ = Fault::kNone;
  int64_t at_ = 0;
  int64_t operations_ = 0;
  uint64_t space_ = UINT64_MAX;
  uint64_t most_used_ = 0;
};

}  // namespace telar::checkpoint
