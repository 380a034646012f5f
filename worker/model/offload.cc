#include "worker/model/offload.h"

namespace telar::model {

using engine::Tensor;

void Offload::begin_layer() {
  ++now_;
  std::erase_if(leaving_, [this](const auto& entry) {
    const auto& [since, parked] = entry;
    if (since + 2 > now_) return false;
    engine::release(program_, parked);
    return true;
  });
}

void Offload::send(Trip& trip, const std::string& name, const ForEach& for_each_kept) {
  std::vector<Tensor> tensors;
  for_each_kept([&](Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(tensor);
  });
  trip.parked_ = engine::copy_out(program_, name, tensors);
  trip.away_ = true;
  leaving_.emplace_back(now_, trip.parked_);
}

void Offload::fetch(Trip& trip, const ForEach& for_each_kept) {
  if (!trip.away_) return;
  trip.away_ = false;
  const std::vector<Tensor> back = engine::copy_in(program_, trip.parked_);
  size_t i = 0;
  for_each_kept([&](Tensor& tensor) {
    if (tensor.defined()) tensor = back[i++];
  });
}

}  // namespace telar::model
