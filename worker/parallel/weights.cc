#include "worker/parallel/weights.h"

#include <algorithm>

namespace telar::parallel {

using backend::Communicator;
using engine::Tensor;

bool Weights::is_whole_between_steps(size_t bucket) const {
  const bool gathers_once = sharding_.zero_stage == 1 || sharding_.zero_stage == 2;
  return gathers_once && bucket + 1 == layout_.buckets().size();  // Buckets go from the highest unit down.
}

void Weights::updated(size_t bucket) {
  if (!is_whole_between_steps(bucket)) return;
  gather(bucket, stored_.range(bucket, layout_.shard(bucket)), stored_.buckets()[bucket]);
}

Tensor Weights::group(const std::string& name) {
  const size_t index = layout_.index(name);
  const GroupPlace& place = layout_.place(index);
  return bucket(static_cast<size_t>(place.bucket)).slice(place.first, layout_.groups()[index].shape);
}

Tensor Weights::bucket(size_t index) {
  if (sharding_.zero_stage == 3) return slot_of(index);
  const Tensor whole = stored_.buckets()[index];
  if (sharding_.zero_stage > 0 && !gathered_[index] && !is_whole_between_steps(index)) {
    gathered_[index] = true;
    gather(index, stored_.range(index, layout_.shard(index)), whole);
  }
  return whole;
}

Tensor Weights::slot_of(size_t index) {
  const int64_t elements = layout_.buckets()[index].elements;
  Slots& own = slots_[elements];
  ++reads_;
  for (size_t i = 0; i < own.tensors.size(); ++i) {
    if (own.holds[i] != index) continue;
    own.read[i] = reads_;
    return own.tensors[i];
  }
  const Tensor shard = stored_.buckets()[index];
  if (own.tensors.size() <= static_cast<size_t>(sharding_.prefetch)) {
    const std::string name = "weights.slot." + std::to_string(elements) + "." + std::to_string(own.tensors.size());
    own.tensors.push_back(program_.transient(name, shard.dtype(), {elements}, engine::MemoryClass::kCommunication));
    own.holds.push_back(index);
    own.read.push_back(0);
  }
  const auto oldest = static_cast<size_t>(std::min_element(own.read.begin(), own.read.end()) - own.read.begin());
  own.holds[oldest] = index;
  own.read[oldest] = reads_;
  gather(index, shard, own.tensors[oldest]);
  return own.tensors[oldest];
}

void Weights::gather(size_t index, Tensor shard, Tensor whole) {
  const engine::Program::Scope scope(program_, "", engine::Phase::kWeightComm);
  program_.record("weights.gather." + std::to_string(index), groups_.id(Role::kGather), &Communicator::all_gather,
                  shard.in(), whole.out());
}

}  // namespace telar::parallel
