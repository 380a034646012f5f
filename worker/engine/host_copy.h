// What runs of an executor leave in device memory, copied to pinned memory of the host beside the runs that follow. The
// next run goes on up to its gate, and stops there only if the copy is not done by then. The memory is taken once, and
// never grows.
//
//   origin    [run 7] record                 [run 8: ...... | gate, what overwrites ......]
//   copy lane         wait, copy, record ----------------------^
//   a reader                    wait() ............ memory() ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/gate.h"

namespace telar::engine {

class HostCopy {
 public:
  struct Part {
    const std::byte* from = nullptr;  // On the device.
    uint64_t offset = 0;              // In memory(), where it goes.
    uint64_t bytes = 0;
  };
  // `parts` lie in memory() of `bytes`, which is zero between them. Errors of the device.
  static absl::StatusOr<std::unique_ptr<HostCopy>> create(backend::Device& device, std::vector<Part> parts,
                                                          uint64_t bytes);
  ~HostCopy();

  // To be set in the executor whose runs overwrite what is copied.
  Gate& gate() { return *gate_; }
  // Copies behind what `origin` was given so far. Everybody must be done with memory() before. By the thread that
  // submits runs.
  void take(backend::Stream& origin);
  // Blocks until what was taken is in memory(). By another thread, if that is the only one.
  absl::Status wait() { return lane_->synchronize(); }
  // Blocks until nothing reads the device's side any more; by the thread that submits.
  absl::Status release() { return copied_->synchronize(); }
  // When wait() has returned; any number of threads.
  std::span<const std::byte> memory() const { return {memory_->data(), memory_->bytes()}; }

 private:
  explicit HostCopy(std::vector<Part> parts) : parts_(std::move(parts)) {}

  const std::vector<Part> parts_;
  std::unique_ptr<backend::Memory> memory_;
  std::unique_ptr<backend::Event> behind_, copied_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<backend::Stream> lane_;
};

}  // namespace telar::engine
