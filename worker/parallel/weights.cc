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
  const auto of = static_cast<size_t>(place.bucket);
  const engine::Shape& shape = layout_.groups()[index].shape;
  if (gathers_in_fp8(of)) return slot_of(of).rest.slice(place.first - layout_.buckets()[of].decayed, shape);
  return bucket(of).slice(place.first, shape);
}

Quantized Weights::quantized(const std::string& product, Copies wanted) {
  const std::string name = product + ".weight";
  if (gathers_in_fp8(static_cast<size_t>(layout_.place(layout_.index(name)).bucket))) {
    return quantized_in_gather(product, wanted);
  }
  const Tensor weight = group(name);
  const int64_t gather = gathers_[static_cast<size_t>(layout_.place(layout_.index(name)).bucket)];
  Fp8Copies& own = copies_[product];
  if (own.gather != gather) own = {.gather = gather};
  // Made at once, both cost one read; but what ZeRO 3 wants later may have to be gathered again by then.
  if (wanted == Copies::kBoth && sharding_.zero_stage == 3) wanted = Copies::kRows;
  const bool lacks_rows = wanted != Copies::kColumns && !own.made.rows.defined();
  const bool lacks_columns = wanted != Copies::kRows && !own.made.columns.defined();
  if (!lacks_rows && !lacks_columns) return own.made;
  const Fp8Scales& scales = *fp8_.scales;
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

Quantized Weights::quantized_in_gather(const std::string& product, Copies wanted) {
  const size_t index = layout_.index(product + ".weight");
  const GroupPlace& place = layout_.place(index);
  const auto of = static_cast<size_t>(place.bucket);
  const engine::Shape& shape = layout_.groups()[index].shape;
  Quantized q;
  q.rows = slot_of(of).whole.slice(place.first, shape);
  q.rows_inverse = q.columns_inverse = fp8_gather_.inverse_scale(product);
  if (wanted != Copies::kColumns) return q;
  Fp8Copies& own = copies_[product];
  if (own.gather != gathers_[of]) own = {.gather = gathers_[of]};
  if (!own.made.columns.defined()) {
    own.made.columns = program_.transient(product + ".weight.fp8.transposed", q.rows.dtype(), {shape[1], shape[0]},
                                          engine::MemoryClass::kWeights);
    program_.record(product + ".weight.transpose", &backend::Kernels::transpose, q.rows.in(), own.made.columns.out());
  }
  q.columns = own.made.columns;
  return q;
}

Tensor Weights::bucket(size_t index) {
  if (sharding_.zero_stage == 3) return slot_of(index).whole;
  const Tensor whole = stored_.buckets()[index];
  if (sharding_.zero_stage > 0 && gathers_[index] == 0 && !is_whole_between_steps(index)) {
    gather(index, stored_.range(index, layout_.shard(index)), whole);
  }
  return whole;
}

Fp8Gather::Slot Weights::slot_of(size_t index) {
  const Bucket& bucket = layout_.buckets()[index];
  const bool in_fp8 = gathers_in_fp8(index);
  std::vector<Slot>& own = slots_[{bucket.elements, in_fp8 ? bucket.decayed : 0}];
  ++reads_;
  for (Slot& slot : own) {
    if (slot.holds != index) continue;
    slot.read = reads_;
    return slot.tensors;
  }
  const Tensor shard = stored_.buckets()[index];
  if (own.size() <= static_cast<size_t>(sharding_.prefetch)) {
    const std::string name =
        "weights.slot." + std::to_string(bucket.elements) + (in_fp8 ? ".fp8." : ".") + std::to_string(own.size());
    own.push_back({in_fp8 ? fp8_gather_.slot(index, name)
                          : Fp8Gather::Slot{program_.transient(name, shard.dtype(), {bucket.elements},
                                                               engine::MemoryClass::kCommunication),
                                            {}},
                   index, 0});
  }
  Slot& oldest = *std::ranges::min_element(own, {}, &Slot::read);
  oldest.holds = index;
  oldest.read = reads_;
  if (in_fp8) {
    ++gathers_[index];
    fp8_gather_.gather(index, oldest.tensors);
  } else {
    gather(index, shard, oldest.tensors.whole);
  }
  return oldest.tensors;
}

void Weights::gather(size_t index, Tensor shard, Tensor whole) {
  ++gathers_[index];
  const engine::Program::Scope scope(program_, "", engine::Phase::kWeightComm);
  program_.record("weights.gather." + std::to_string(index), groups_.id(Role::kGather), &Communicator::all_gather,
                  shard.in(), whole.out());
}

}  // namespace telar::parallel
