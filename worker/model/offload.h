// Activations of layers that spend the time between a layer's forward and its backward in host memory: when they leave,
// when their bytes are free, when they come back. engine/offload.h has the three steps.
//
// Time is counted in layers that compute, forward or backward, of whatever micro-batch and stage. What a layer keeps
// leaves behind its forward, beside the next layer; the layer behind that waits until the bytes are free. It comes back
// beside the layer whose backward runs before its own. So the device holds what two layers keep, however many there
// are: in the forward one computes while one leaves, in the backward one computes while one comes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/offload.h"

namespace telar::model {

using TensorVisitor = std::function<void(engine::Tensor&)>;

class Offload {
 public:
  explicit Offload(engine::Program& program) : program_(program) {}

  // The last layers of a stage whose backward follows its forward directly: they would be back before they are gone.
  static constexpr size_t kStay = 2;

  // A layer computes from here on.
  void begin_layer();

  // The tensors of one layer on their way: handles that belong to the layer and are exchanged for those that come back.
  class Trip {
   public:
    bool away() const { return away_; }

   private:
    friend class Offload;
    bool away_ = false;
    engine::Parked parked_;
  };
  using ForEach = std::function<void(const TensorVisitor&)>;
  // `for_each_kept` visits what the layer's backward reads; behind its forward.
  void send(Trip& trip, const std::string& name, const ForEach& for_each_kept);
  // In the order of send(). Does nothing for what is not away.
  void fetch(Trip& trip, const ForEach& for_each_kept);

 private:
  engine::Program& program_;
  int64_t now_ = 0;
  std::vector<std::pair<int64_t, engine::Parked>> leaving_;  // Since when.
};

}  // namespace telar::model
