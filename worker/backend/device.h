// A device: memory, streams, events, and the kernels and communicators that run on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
  // Blocks the host until the latest record that was submitted is reached; returns at once without one. An error is
  // one of the device; those of the stream's work are not the event's business.
  virtual absl::Status synchronize() = 0;
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
  virtual void wait(Event&) = 0;  // Later work of this stream starts after the event's record.
  // Copies in the stream's order and returns at once; by work of this stream: as part of it. Each end is device memory
  // or memory of allocate_pinned(), and stays as it is until the copy is done.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual absl::Status synchronize() = 0;  // Blocks the host until all submitted work is done.
};

// Work that was captured once and can be enqueued again as a whole, with the addresses and the scalars of the capture.
class Graph {
 public:
  virtual ~Graph() = default;
  // In the stream's order, on as many streams as it was captured from. Errors latch in `stream`.
  virtual void launch(Stream& stream) = 0;
  virtual size_t nodes() const = 0;
};

// Words of the host's memory that streams write to as they get on, and that the host can read at any time: also when
// the device has failed and answers nothing any more.
class Marks {
 public:
  struct Mark {
    uint32_t slot = 0;
    uint32_t value = 0;
  };
  virtual ~Marks() = default;
  // Writes when all work before it is done, and before any behind it begins; under capture as part of the graph.
  virtual void leave(Stream& stream, std::span<const Mark> marks) = 0;
  virtual uint32_t read(uint32_t slot) const = 0;  // 0 at first.
};

// RAII over memory aligned to 256 bytes, zeroed: of the device, or of the host where allocate_pinned() made it.
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
  double peak_flops_f8 = 0;
  bool multiplies_fp8 = false;         // Kernels::fp8_product and fp8_wgrad are there.
  bool multiplies_fp8_blocks = false;  // Also of operands that are scaled in blocks.
  double peak_flops(DType compute) const {
    if (compute == DType::kF32) return peak_flops_f32;
    if (is_fp8(compute)) return peak_flops_f8;
    return compute == DType::kF16 ? peak_flops_f16 : peak_flops_bf16;
  }
};

// One kernel that a call launches, and how many of it a multiprocessor holds.
struct KernelLaunch {
  std::string name;
  uint64_t blocks = 0;
  int threads = 0;            // A block.
  int registers = 0;          // A thread.
  uint64_t shared_bytes = 0;  // A block, static and dynamic.
  uint64_t local_bytes = 0;   // A thread: spilled registers and indexed arrays.
  int resident_warps = 0;     // A multiprocessor, of max_warps.
  int max_warps = 0;
  std::string limiter;  // What keeps resident_warps from being more: registers | shared memory | warps | blocks | grid.
};

// Bytes of the device that are in use beside what allocate() gave.
struct DeviceOverhead {
  uint64_t workspaces = 0;  // What kernels keep between their launches, and vendor libraries for theirs.
  uint64_t context = 0;     // The rest: driver context, code, graphs, buffers of collectives; other processes, too.
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // RESOURCE_EXHAUSTED names bytes asked and free.
  virtual absl::StatusOr<std::unique_ptr<Memory>> allocate(size_t bytes) = 0;
  // Host memory that streams can copy from and to while the host goes on; zeros.
  virtual absl::StatusOr<std::unique_ptr<Memory>> allocate_pinned(size_t bytes) = 0;
  // As of now. Zeros where a device is the host.
  virtual absl::StatusOr<DeviceOverhead> overhead() = 0;
  // Only the stream that is `compute` may use all threads of the device.
  virtual absl::StatusOr<std::unique_ptr<Stream>> create_stream(const std::string& name, bool compute) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> create_event() = 0;
  // An event that also keeps the time at which the stream got to it; for measurements.
  virtual absl::StatusOr<std::unique_ptr<Event>> create_timed_event() = 0;
  // Seconds from the latest record of `start` to that of `stop`, both timed events. Waits for both.
  virtual absl::StatusOr<double> seconds_between(Event& start, Event& stop) = 0;
  // What `issue` enqueues on `origin`, and on streams that wait for it there and that it waits for again, all by the
  // calling thread: recorded, not run. Nothing in it may allocate or synchronize. On an error the streams are as they
  // were. UNIMPLEMENTED: this device has no graphs.
  virtual absl::StatusOr<std::unique_ptr<Graph>> capture(Stream& origin,
                                                         const std::function<absl::Status()>& issue) = 0;
  // Words [0, slots), to go behind the streams. UNIMPLEMENTED: this device names the work that fails, or has no way to
  // write them from its streams and graphs.
  virtual absl::StatusOr<std::unique_ptr<Marks>> create_marks(uint32_t slots) = 0;
  virtual Kernels& kernels() = 0;
  // A communicator a group, in the order of `groups`. Blocks until all members of all of them are there. Every rank
  // lists the groups that it is in, in one order over all groups: then no rank waits for one that waits for it.
  virtual absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> create_communicators(
      KeyValueStore& store, const GangOptions& options, std::span<const Group> groups) = 0;
  // The same for one group.
  absl::StatusOr<std::unique_ptr<Communicator>> create_communicator(KeyValueStore& store,
                                                                    const CommunicatorOptions& options);
  // Host <-> device, host-blocking, for set-up, checkpoints and results; not for use inside a step.
  virtual absl::Status copy_to_device(const void* host, std::byte* device, size_t bytes) = 0;
  virtual absl::Status copy_to_host(const std::byte* device, void* host, size_t bytes) = 0;
  // The kernels that `work` launches on `stream`, without running them. `work` must have run on this stream before, so
  // that nothing is left to tune or to allocate. A device without kernels of its own has none to name.
  virtual absl::StatusOr<std::vector<KernelLaunch>> describe(Stream& stream,
                                                             const std::function<absl::Status(Stream&)>& work) = 0;
};

}  // namespace telar::backend
