// Collectives between devices, by NCCL. Every call enqueues on its stream's CUDA stream and can be captured into a
// graph.
//
// Sums: f32 in f32; bf16 is rounded to bf16 wherever NCCL adds two partial sums, so once a step of its ring or tree
// rather than once at the end; sum in f32 where that matters. The order depends on group size, message size and the
// machine's links, not on values or timing.
//
// Errors latch, each names communicator, call and own rank. The first one aborts the NCCL communicators of all groups
// on this device, which stops their kernels, and the host's waits for the device return it: see nccl_watchdog.h.
//   INVALID_ARGUMENT    an argument of this call
//   UNAVAILABLE         a peer or the network failed
//   DEADLINE_EXCEEDED   a peer did not come: connect_timeout to connect, call_timeout for all else
//
// Sends and receives of one stream run in its order, and a send may wait for its recv: two ranks that both send first
// wait for ever. all_gather's x may be its place in y; reduce_scatter's y may be its place in x.
// Under capture a call is recorded as it would run: the capture must be thread-local, as NCCL launches from threads of
// its own. Buffers of captured calls are not registered with the peers (NCCL_GRAPH_REGISTER), so that a captured call
// is the same as an eager one, in its sums and for peers that run it eagerly. Graphs go before the communicator.
// NVLink multicast is off unless the environment says otherwise (NCCL_NVLS_ENABLE). NCCL picks the network interface
// itself: options.listen_host is not used (NCCL_SOCKET_IFNAME is).
// Several communicators on one device: one host thread issues for a device, in one order over all ranks. What runs
// beside each other needs room beside each other, else two ranks could each hold what the other needs: a kernel takes
// at most 32 of a GPU's multiprocessors, and lanes have few calls under way at once. NCCL_LAUNCH_ORDER_IMPLICIT=1 would
// serialise them instead, but ends the process at a capture (NCCL 2.28), so it stays off.
// Threads: one call at a time, with the communicator's device current except in barrier(), which issues, too.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/collectives.h"
#include "worker/backend/cuda/nccl_watchdog.h"

namespace telar::backend::cuda {

class NcclCommunicator final : public Communicator, private NcclWatchdog::Member {
 public:
  // Blocks until all members are there. Members find each other by the key "communicator/<name>/nccl".
  static absl::StatusOr<std::unique_ptr<Communicator>> create(int device, KeyValueStore& store,
                                                              const CommunicatorOptions& options);
  // All work on its streams is done, or is given up.
  ~NcclCommunicator() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  absl::Status all_reduce(Stream& stream, ReduceOp op, InOut x) override;
  absl::Status all_gather(Stream& stream, In x, Out y) override;
  absl::Status reduce_scatter(Stream& stream, ReduceOp op, In x, Out y) override;
  absl::Status broadcast(Stream& stream, int root, InOut x) override;
  absl::Status send(Stream& stream, int peer, In x) override;
  absl::Status recv(Stream& stream, int peer, Out y) override;
  absl::Status exchange(Stream& stream, int to, In x, int from, Out y) override;
  absl::Status barrier() override;

 private:
  using Clock = std::chrono::steady_clock;
  // A call that was issued outside of a capture, and the event behind it.
  struct Issued {
    const char* call;
    uint64_t number;
    Clock::time_point at;
    cudaEvent_t done;
  };

  NcclCommunicator(int device, const CommunicatorOptions& options) : device_(device), options_(options) {}
  absl::Status connect(KeyValueStore& store);
  absl::StatusOr<ncclUniqueId> meet(KeyValueStore& store);
  std::string place(const char* call) const;
  absl::Status run(const char* call, const std::function<absl::Status()>& body);
  // A call of NCCL on comm_ and its end, however long NCCL takes to make connections.
  absl::Status invoke(Clock::time_point deadline, const std::function<ncclResult_t()>& call);
  absl::Status settle(Clock::time_point deadline);
  // The same for a collective: on a stream, to be finished within call_timeout.
  absl::Status enqueue(const char* call, cudaStream_t stream, const std::function<ncclResult_t()>& work);
  absl::Status wait_for_barrier(Clock::time_point deadline);
  void forget_finished();

  absl::Status look() override;
  std::string unfinished() override;
  std::chrono::milliseconds call_timeout() const override { return options_.call_timeout; }
  void abort() override;

  const int device_;
  const CommunicatorOptions options_;
  cudaStream_t barrier_stream_ = nullptr;
  int32_t* barrier_token_ = nullptr;  // On the device.
  absl::Status error_;

  std::mutex mutex_;           // Guards all below, and NCCL's calls on comm_, none of which waits for a peer.
  ncclComm_t comm_ = nullptr;  // Null in a group of one, and after an abort.
  uint64_t calls_ = 0;
  uint64_t captured_ = 0;      // Calls that were recorded into graphs.
  std::deque<Issued> issued_;  // The unfinished ones and some that have finished since.
  std::vector<cudaEvent_t> spare_events_;
};

// As Device::create_communicators().
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> create_nccl_communicators(int device, KeyValueStore& store,
                                                                                     const GangOptions& options,
                                                                                     std::span<const Group> groups);

}  // namespace telar::backend::cuda
