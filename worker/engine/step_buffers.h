// What crosses between host and device around a step, without either waiting for the other: two slots of pinned memory
// each way, filled and read by the host while the device works on the other one.
//
//   host        write slot k % 2              ...        wait, read slot k % 2
//   copy lane   slot -> staging k % 2
//   origin      wait, staging -> inputs, [the run], outputs -> slot k % 2, record
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/executor.h"

namespace telar::engine {

// Threads: one caller. Destroyed before the executor, and when all that was sent is over.
class StepBuffers {
 public:
  static constexpr int kSlots = 2;

  // `inputs` are tensors that the host writes before each run of the executor, `outputs` f32 scalars that it reads
  // behind each. At most kSlots steps may be between send() and wait().
  static absl::StatusOr<std::unique_ptr<StepBuffers>> create(backend::Device& device, Executor& executor,
                                                             std::vector<Tensor> inputs, std::vector<Tensor> outputs);

  // Where the host writes input `index` of step number `step` (any count that grows by one), from when wait() for the
  // step kSlots before has returned until send().
  template <typename T>
  std::span<T> input(uint64_t step, size_t index) {
    return {reinterpret_cast<T*>(slot(step).host_inputs->data() + inputs_[index].offset),
            inputs_[index].tensor.bytes() / sizeof(T)};
  }
  void send(uint64_t step);     // Before executor.submit(): the inputs are written.
  void receive(uint64_t step);  // Behind it.
  // Blocks until the step is over on the device.
  absl::Status wait(uint64_t step) { return slot(step).received->synchronize(); }
  // Whether all copies to the device went well so far; blocks for those that were sent.
  absl::Status check() { return copy_in_->synchronize(); }
  float output(uint64_t step, size_t index) {
    float value;
    std::memcpy(&value, slot(step).host_outputs->data() + outputs_[index].offset, sizeof(value));
    return value;
  }
  // What they take on the device for such inputs, beside the program's arenas.
  static uint64_t device_bytes(const std::vector<Tensor>& inputs);
  uint64_t device_bytes() const;

 private:
  struct Place {
    Tensor tensor;
    uint64_t offset = 0;  // In a slot.
  };
  struct Slot {
    std::unique_ptr<backend::Memory> host_inputs, device_inputs, host_outputs;
    std::unique_ptr<backend::Event> sent, received;
  };
  explicit StepBuffers(Executor& executor) : executor_(executor) {}
  static uint64_t place(std::vector<Tensor> tensors, std::vector<Place>& places);
  Slot& slot(uint64_t step) { return slots_[step % kSlots]; }

  Executor& executor_;
  std::vector<Place> inputs_, outputs_;
  std::array<Slot, kSlots> slots_;
  std::unique_ptr<backend::Stream> copy_in_;  // Last: gone before what its work touches.
};

}  // namespace telar::engine
