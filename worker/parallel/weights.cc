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

Quantized Weights::quantized(const std::string& product, const Fp8Scales& scales, Copies wanted) {
  const std::string name = product + ".weight";
  const Tensor weight = group(name);
  const int64_t gather = gathers_[static_cast<size_t>(layout_.place(layout_.index(name)).bucket)];
  Fp8Copies& own = fp8_[name];
  if (own.gather != gather) own = {.gather = gather};
  // Made at once, both cost one read; but what ZeRO 3 wants later may have to be gathered again by then.
  if (wanted == Copies::kBoth && sharding_.zero_stage == 3) wanted = Copies::kRows;
  const bool lacks_rows = wanted != Copies::kColumns && !own.made.rows.defined();
  const bool lacks_columns = wanted != Copies::kRows && !own.made.columns.defined();
  if (!lacks_rows && !lacks_columns) return own.made;
  if (!own.amax.defined()) own.amax = scales.amax(name, product, Operand::kWeight, weight);
  const Copies lacking = !lacks_columns ? Copies::kRows : lacks_rows ? Copies::kBoth : Copies::kColumns;
  const Quantized more =
      scales.quantize(name, product, Operand::kWeight, weight, own.amax, engine::DType::kF8E4M3, lacking);
  if (lacks_rows) {
    own.made.rows = more.rows;
    own.made.rows_inverse = more.rows_inverse;
  }
  if (lacks_columns) {
    own.made.columns = more.columns;
    own.made.columns_inverse = more.columns_inverse;
  }
  return own.made;
}

Tensor Weights::bucket(size_t index) {
  if (sharding_.zero_stage == 3) return slot_of(index);
  const Tensor whole = stored_.buckets()[index];
  if (sharding_.zero_stage > 0 && gathers_[index] == 0 && !is_whole_between_steps(index)) {
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
  ++gathers_[index];
  const engine::Program::Scope scope(program_, "", engine::Phase::kWeightComm);
  program_.record("weights.gather." + std::to_string(index), groups_.id(Role::kGather), &Communicator::all_gather,
                  shard.in(), whole.out());
}

}  // namespace telar::parallel
