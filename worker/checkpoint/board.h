// Where the ranks of one save meet: a directory beside the checkpoint in the making, on the file system that they share
// anyway. So gathering a save needs no coordinator, and leaves nothing behind in its store.
//
// A message is a file that appears whole, by a rename. Whoever waits lists the directory and opens only what it found
// there: file systems between hosts keep a listing fresh for whoever opens the directory anew (NFS: close-to-open
// consistency), but may remember for a minute that a single name was not there.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/file_system.h"

namespace telar::checkpoint {

// One rank's view of it. Not for several threads. `files` must outlive it.
class Board {
 public:
  // `give_up`, unless null, ends waiting when it turns true.
  Board(FileSystem& files, std::string path, const std::atomic<bool>* give_up = nullptr)
      : files_(files), path_(std::move(path)), give_up_(give_up) {}

  const std::string& path() const { return path_; }
  absl::Status make() { return files_.make_directory(path_); }  // By one rank, before anybody posts.
  absl::Status post(const std::string& name, std::string_view text);
  // The two halves of it. The second one needs no space on the device.
  absl::Status prepare(const std::string& name, std::string_view text);
  absl::Status show(const std::string& name);
  absl::StatusOr<std::string> read(const std::string& name) const;
  absl::Status remove(const std::string& name) { return files_.remove_file(path_of(name)); }

  // Names of the messages once `enough` says so of them. DEADLINE_EXCEEDED after `patience`, with the names of that
  // moment in `names`; ABORTED when the board was there and is no more: another save swept it; CANCELLED when it is
  // given up.
  using Enough = std::function<bool(const std::vector<std::string>& names)>;
  absl::Status wait(const Enough& enough, std::chrono::milliseconds patience, std::vector<std::string>& names);

 private:
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  std::string draft_of(const std::string& name) const;

  FileSystem& files_;
  const std::string path_;
  const std::atomic<bool>* const give_up_;
  bool seen_ = false;
};

}  // namespace telar::checkpoint
