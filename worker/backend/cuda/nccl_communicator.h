// Collectives between devices, by NCCL. Every call enqueues on its stream's CUDA stream and can be captured into a
// graph.
//
// Sums: f32 in f32; bf16 is rounded to bf16 wherever NCCL adds two partial sums, so once a step of its ring or tree
// rather than once at the end; sum in f32 where that matters. The order depends on group size, message size and the
// machine's links, not on values or timing.
//
// Errors latch, each names communicator, call and own rank; the first one aborts NCCL's communicator, which stops its
// kernels on this device. A peer on another node then sees its connection close; one on this node may wait on the
// device until somebody aborts it: whoever watches the step must.
//   INVALID_ARGUMENT    an argument of this call
//   UNAVAILABLE         a peer or the network failed
//   DEADLINE_EXCEEDED   a peer did not come: connect_timeout, call_timeout for what the host waits for (set-up of
//                       connections, barrier). A collective that was enqueued has no deadline of its own.
//
// Sends and receives of one stream run in its order, and a send may wait for its recv: two ranks that both send first
// wait for ever. all_gather's x may be its place in y; reduce_scatter's y may be its place in x.
// Under capture a call is recorded as it would run: the capture must be thread-local, as NCCL launches from threads of
// its own. Buffers of captured calls are not registered with the peers (NCCL_GRAPH_REGISTER), so that a captured call
// is the same as an eager one, in its sums and for peers that run it eagerly. Graphs go before the communicator.
// NVLink multicast is off unless the environment says otherwise (NCCL_NVLS_ENABLE). NCCL picks the network interface
// itself: options.listen_host is not used (NCCL_SOCKET_IFNAME is).
// Threads: one call at a time, with the communicator's device current except in barrier().
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/collectives.h"

namespace telar::backend::cuda {

class NcclCommunicator final : public Communicator {
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
  absl::Status barrier() override;

 private:
  using Clock = std::chrono::steady_clock;

  NcclCommunicator(int device, const CommunicatorOptions& options) : device_(device), options_(options) {}
  absl::Status connect(KeyValueStore& store);
  absl::StatusOr<ncclUniqueId> meet(KeyValueStore& store);
  absl::Status run(const char* call, const std::function<absl::Status()>& body);
  absl::Status settle(ncclResult_t result, Clock::time_point deadline);
  absl::Status finish(ncclResult_t result) { return settle(result, Clock::now() + options_.call_timeout); }
  absl::Status wait_for_barrier(Clock::time_point deadline);
  void abort();

  const int device_;
  const CommunicatorOptions options_;
  ncclComm_t comm_ = nullptr;  // Null in a group of one, and after an error.
  cudaStream_t barrier_stream_ = nullptr;
  int32_t* barrier_token_ = nullptr;  // On the device.
  absl::Status error_;
};

}  // namespace telar::backend::cuda
