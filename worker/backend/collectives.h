// What a device can exchange with its peers.
//
// A Communicator is one group of ranks in a fixed order. All its members make the same calls in the same order; the
// engine sees to that. Calls on one communicator come from one stream at a time. Different communicators run
// concurrently: a call that waits for a slow peer holds up no call of another group. On a GPU one host thread issues
// the calls of all groups of a device, in an order that is free of cycles over all ranks.
//
// In place: all_gather's x may be its own place in y, reduce_scatter's y its own place in x. No other overlap.
//
// Failure: a failed call latches. It ends all communicators of the same gang in this process and what they have under
// way, so that their peers fail, too, instead of waiting; every later call returns an error that names the first, and
// the process is expected to end. Where calls are asynchronous, a host that waits for a stream or an event gets the
// error of the communicators on that device (see nccl_watchdog.h). Nothing waits longer than call_timeout for a peer.
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
  // A send to `to` and a receive from `from`, at once: a cycle of them needs nobody to begin. y.elements == x.elements,
  // one dtype; `to` may be `from`. The peers' halves may be sends, receives or exchanges.
  virtual absl::Status exchange(Stream&, int to, In x, int from, Out y) = 0;
  virtual absl::Status barrier() = 0;  // Host-blocking.
};

// What every backend asks of a call's arguments, so that all refuse the same calls in the same words: INVALID_ARGUMENT.
absl::Status check_reducible(DType dtype);  // f32, bf16, f16 and i32.
// `whole`, an argument called `name`, holds `members` times what `part` does.
absl::Status check_whole(const char* name, const View& whole, const View& part, int members);
absl::Status check_root(int root, int members);
absl::Status check_peer(int peer, int rank, int members);  // A member other than this one.

// How the members of a group find each other; the service gives one that speaks to the coordinator.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual absl::Status put(const std::string& key, const std::string& value) = 0;
  // Blocks until all are there; DEADLINE_EXCEEDED names the missing keys.
  virtual absl::StatusOr<std::vector<std::string>> get(std::span<const std::string> keys,
                                                       std::chrono::milliseconds timeout) = 0;
};

// Ranks that make one communicator, in its order.
struct Group {
  std::string name;  // Unique in the job's epoch, equal on all members: "world", "tensor.4", ...
  std::vector<int> ranks;
};

// What the groups of one process have in common.
struct GangOptions {
  std::string name = "gang";  // Equal on all ranks; unique among the gangs that meet through one store.
  int rank = 0;               // Of this process, as the groups number them.
  std::string listen_host;    // Address that peers reach this process at.
  std::chrono::milliseconds connect_timeout{30000};
  std::chrono::milliseconds call_timeout{600000};
};

// The options are usable, names are there and unique, every group holds this rank and no rank twice: INVALID_ARGUMENT.
absl::Status check_groups(const GangOptions& options, std::span<const Group> groups);

// A gang of one group, which numbers the ranks as the group does and bears its name.
struct CommunicatorOptions {
  std::string name;
  int rank = 0;  // Within the group.
  int size = 1;
  std::string listen_host;  // Address that peers reach this process at.
  std::chrono::milliseconds connect_timeout{30000};
  std::chrono::milliseconds call_timeout{600000};
};

}  // namespace telar::backend
