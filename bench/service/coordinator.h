// A telar-coordinator of the bench's own, with its data in a temporary folder.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace telar::bench {

class Coordinator {
 public:
  // `store`: as for telar-coordinator; empty: SQLite. `folder`: where its temporary folder is made: the disk that
  // counts.
  static absl::StatusOr<std::unique_ptr<Coordinator>> start(const std::string& program, const std::string& folder,
                                                            const std::string& store);
  ~Coordinator();  // Killed, its folder removed.

  const std::string& address() const { return address_; }
  // SIGKILL, and again on the same data. How long until it serves.
  absl::StatusOr<double> kill_and_start();

  double cpu_seconds() const;  // Since its start.
  uint64_t resident_bytes() const;
  // Its /metrics: name with labels -> value.
  std::map<std::string, double> metrics() const;

 private:
  Coordinator(std::string program, std::string folder, std::string store)
      : program_(std::move(program)), folder_(std::move(folder)), store_(std::move(store)) {}
  absl::Status spawn();
  void end();

  const std::string program_, folder_, store_;
  pid_t pid_ = 0;
  std::string address_, http_;
};

}  // namespace telar::bench
