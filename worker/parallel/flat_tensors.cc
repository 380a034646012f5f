#include "worker/parallel/flat_tensors.h"

namespace telar::parallel {

FlatTensors::FlatTensors(engine::Program& program, const FlatLayout& layout, const std::string& name,
                         engine::DType dtype, engine::MemoryClass memory_class, Owner owner, Extent extent) {
  for (size_t i = 0; i < layout.buckets().size(); ++i) {
    const Range held = extent == Extent::kWhole ? layout.whole(i) : layout.shard(i);
    const std::string full = name + "." + std::to_string(i);
    buckets_.push_back(owner == Owner::kProgram ? program.persistent(full, dtype, {held.count}, memory_class)
                                                : program.external(full, dtype, {held.count}));
    first_.push_back(held.first);
  }
}

engine::Tensor FlatTensors::range(size_t bucket, const Range& range) const {
  return buckets_[bucket].slice(range.first - first_[bucket], {range.count});
}

FlatTensors FlatTensors::shards(const FlatLayout& layout) const {
  FlatTensors views;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    views.buckets_.push_back(range(i, layout.shard(i)));
    views.first_.push_back(layout.shard(i).first);
  }
  return views;
}

engine::Tensor FlatTensors::group(const FlatLayout& layout, const std::string& name) const {
  const size_t index = layout.index(name);
  const GroupPlace& place = layout.place(index);
  return buckets_[static_cast<size_t>(place.bucket)].slice(place.first, layout.groups()[index].shape);
}

}  // namespace telar::parallel
