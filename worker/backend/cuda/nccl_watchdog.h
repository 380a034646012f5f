// Ends what would wait for ever. A collective on a GPU spins in its kernel until its peers come: where one has died or
// hangs, NCCL may not notice, and the host that waits for the stream waits with it. One thread of the process looks at
// all communicators ten times a second, and at the first failure aborts all of a device: their kernels leave, the
// stream goes on, and the host's wait returns with the error.
//
// A failure is
//   - what NCCL reports by itself (ncclCommGetAsyncError): a connection to another node that broke;
//   - a call issued one by one that is unfinished call_timeout after it was issued;
//   - a host that has waited for a stream or an event of the device for call_timeout. This is what ends a step that is
//     run from a graph, whose single calls nobody sees: call_timeout must be longer than what a host ever waits for,
//     so than two steps;
//   - a call of a communicator that failed, or a set-up that did not come about.
// It latches for the device until the last of its communicators is gone.
// Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace telar::backend::cuda {

class NcclWatchdog {
 public:
  using Clock = std::chrono::steady_clock;

  // A communicator. All methods are called by threads of the watchdog or of who calls fail().
  class Member {
   public:
    virtual ~Member() = default;
    // An error that needs no call to be seen.
    virtual absl::Status look() = 0;
    // What may be under way, for an error's text; empty if nothing is.
    virtual std::string unfinished() = 0;
    virtual std::chrono::milliseconds call_timeout() const = 0;
    // Ends what is under way. Called at most once, beside the aborts of the device's other members: one of them may
    // be what another waits for.
    virtual void abort() = 0;
  };

  // The one of the process.
  static NcclWatchdog& instance();
  explicit NcclWatchdog(std::chrono::milliseconds period);
  ~NcclWatchdog();

  void add(int device, Member& member);
  void remove(int device, Member& member);  // Blocks while the device's members are being aborted.

  // Latches `status`, unless there is an earlier one, and aborts all members of the device.
  void fail(int device, const absl::Status& status);
  absl::Status failure(int device) const;

  // Calls `wait`, which blocks until the device is done with something. The device's failure if there is one by then,
  // else what `wait` returned.
  absl::Status wait(int device, const std::function<absl::Status()>& wait);

 private:
  struct Device {
    std::vector<Member*> members;
    absl::Status failure;
    bool aborting = false;
  };
  struct HostWait {
    int device;
    Clock::time_point start;
  };

  void loop();
  absl::Status look(int device, const Device& state) const;

  const std::chrono::milliseconds period_;
  mutable std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  std::map<int, Device> devices_;  // Those with members.
  std::list<HostWait> waits_;      // Under way.
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace telar::backend::cuda
