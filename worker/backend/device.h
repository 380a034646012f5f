// A device: memory, streams, events, and the kernels and communicators that run on it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/collectives.h"
#include "worker/backend/kernels.h"

namespace telar::backend {

// A point in a stream's work. Recorded and waited for any number of times; a wait sees the latest record that was
// submitted before it.
class Event {
 public:
  virtual ~Event() = default;
};

// Work in order. On a GPU a CUDA stream: `submit` calls `work` at once, which enqueues kernels. On the CPU a thread:
// `submit` hands `work` to it. The first error latches: later work is dropped, and synchronize returns it.
// Threads: one caller at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // `work` must stay alive until the stream is synchronized.
  virtual void submit(const std::function<absl::Status(Stream&)>& work) = 0;
  virtual void record(Event&) = 0;
  virtual void wait(Event&) = 0;           // Later work of this stream starts after the event's record.
  virtual absl::Status synchronize() = 0;  // Blocks the host until all submitted work is done.
};

// RAII over device memory, aligned to 256 bytes, zeroed.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() = 0;
  virtual size_t bytes() const = 0;
};

struct DeviceOptions {
  int index = 0;
  int threads = 1;             // CPU threads that the compute stream may use.
  bool deterministic = false;  // The same bits in every process, at some cost in time and memory (see kernels.h).
};

struct DeviceInfo {
  std::string model;
  uint64_t memory_bytes = 0;
  double peak_flops_f32 = 0;  // Dense; 0 = unknown, then there is no MFU.
  double peak_flops_bf16 = 0;
  double peak_flops_f16 = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // RESOURCE_EXHAUSTED names bytes asked and free.
  virtual absl::StatusOr<std::unique_ptr<Memory>> allocate(size_t bytes) = 0;
  // Only the stream that is `compute` may use all threads of the device.
  virtual absl::StatusOr<std::unique_ptr<Stream>> create_stream(const std::string& name, bool compute) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> create_event() = 0;
  virtual Kernels& kernels() = 0;
  // Blocks until all members called it with the same name.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> create_communicator(KeyValueStore&,
                                                                            const CommunicatorOptions&) = 0;
  // Host <-> device, host-blocking, for set-up, checkpoints and results; not for use inside a step.
  virtual absl::Status copy_to_device(const void* host, std::byte* device, size_t bytes) = 0;
  virtual absl::Status copy_to_host(const std::byte* device, void* host, size_t bytes) = 0;
};

}  // namespace telar::backend
