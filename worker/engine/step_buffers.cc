#include "worker/engine/step_buffers.h"

#include "worker/engine/memory_plan.h"

namespace telar::engine {

absl::StatusOr<std::unique_ptr<StepBuffers>> StepBuffers::create(backend::Device& device, Executor& executor,
                                                                 std::vector<Tensor> inputs,
                                                                 std::vector<Tensor> outputs) {
  std::unique_ptr<StepBuffers> buffers(new StepBuffers(executor));
  const uint64_t input_bytes = place(std::move(inputs), buffers->inputs_);
  const uint64_t output_bytes = place(std::move(outputs), buffers->outputs_);
  absl::Status status;
  const auto keep = [&status](auto made, auto& at) {
    if (made.ok()) at = *std::move(made);
    status.Update(made.status());
  };
  for (Slot& slot : buffers->slots_) {
    keep(device.allocate_pinned(input_bytes), slot.host_inputs);
    keep(device.allocate(input_bytes), slot.device_inputs);
    keep(device.allocate_pinned(output_bytes), slot.host_outputs);
    keep(device.create_event(), slot.sent);
    keep(device.create_event(), slot.received);
  }
  keep(device.create_stream("copy_in", false), buffers->copy_in_);
  if (!status.ok()) return status;
  return buffers;
}

uint64_t StepBuffers::place(std::vector<Tensor> tensors, std::vector<Place>& places) {
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    places.push_back({tensor, end});
    end += align_up(tensor.bytes());
  }
  return end;
}

void StepBuffers::send(uint64_t step) {
  Slot& at = slot(step);
  const Place& last = inputs_.back();
  copy_in_->copy(at.device_inputs->data(), at.host_inputs->data(), last.offset + last.tensor.bytes());
  copy_in_->record(*at.sent);
  backend::Stream& origin = executor_.origin();
  origin.wait(*at.sent);
  for (const Place& place : inputs_) {
    origin.copy(executor_.address(place.tensor), at.device_inputs->data() + place.offset, place.tensor.bytes());
  }
}

void StepBuffers::receive(uint64_t step) {
  Slot& at = slot(step);
  backend::Stream& origin = executor_.origin();
  for (const Place& place : outputs_) {
    origin.copy(at.host_outputs->data() + place.offset, executor_.address(place.tensor), place.tensor.bytes());
  }
  origin.record(*at.received);
}

uint64_t StepBuffers::device_bytes(const std::vector<Tensor>& inputs) {
  std::vector<Place> places;
  return kSlots * place(inputs, places);
}

uint64_t StepBuffers::device_bytes() const {
  uint64_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.device_inputs->bytes();
  return bytes;
}

}  // namespace telar::engine
