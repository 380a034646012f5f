// What a device can exchange with its peers.
//
// A Communicator is one group of ranks in a fixed order. All its members make the same calls in the same order; the
// engine sees to that. Calls on one communicator come from one stream at a time; different communicators may run
// concurrently. A failed call latches: every later one returns the same error, and the process is expected to end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/view.h"

namespace telar::backend {

class Stream;

enum class ReduceOp : uint8_t { kSum, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Elementwise over the group, result on every member. f32, bf16 and f16 (both summed in f32), i32.
  // Deterministic: the order of the sum depends on group size and element index only.
  virtual absl::Status all_reduce(Stream&, ReduceOp, InOut x) = 0;
  // y = the group's x in rank order: y.elements == size * x.elements.
  virtual absl::Status all_gather(Stream&, In x, Out y) = 0;
  // y = this member's part of the sum: x.elements == size * y.elements.
  virtual absl::Status reduce_scatter(Stream&, ReduceOp, In x, Out y) = 0;
  virtual absl::Status broadcast(Stream&, int root, InOut x) = 0;
  virtual absl::Status send(Stream&, int peer, In x) = 0;
  virtual absl::Status recv(Stream&, int peer, Out y) = 0;
  virtual absl::Status barrier() = 0;  // Host-blocking.
};

// How the members of a group find each other; the service gives one that speaks to the coordinator.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual absl::Status put(const std::string& key, const std::string& value) = 0;
  // Blocks until all are there; DEADLINE_EXCEEDED names the missing keys.
  virtual absl::StatusOr<std::vector<std::string>> get(std::span<const std::string> keys,
                                                       std::chrono::milliseconds timeout) = 0;
};

struct CommunicatorOptions {
  std::string name;  // Unique in the job's epoch, equal on all members: "world", "dp0", ...
  int rank = 0;      // Within the group.
  int size = 1;
  std::string listen_host;  // Address that peers reach this process at.
  std::chrono::milliseconds connect_timeout{30000};
  std::chrono::milliseconds call_timeout{600000};
};

}  // namespace telar::backend
