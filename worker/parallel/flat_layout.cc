#include "worker/parallel/flat_layout.h"

#include <algorithm>
#include <numeric>

namespace telar::parallel {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

FlatLayout::FlatLayout(std::vector<ParameterGroup> groups, int64_t bucket_elements)
    : groups_(std::move(groups)), places_(groups_.size()) {
  // Highest unit first; inside a bucket the decayed groups first. Both sorts keep the given order otherwise.
  std::vector<size_t> order(groups_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return groups_[a].unit > groups_[b].unit; });
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    int64_t size = 0;
    while (end < order.size() && size < bucket_elements) {  // Whole units only.
      const int unit = groups_[order[end]].unit;
      for (; end < order.size() && groups_[order[end]].unit == unit; ++end) {
        size += round_up(groups_[order[end]].shape.elements(), kAlignment);
      }
    }
    Bucket bucket;
    bucket.last_unit = groups_[order[end - 1]].unit;
    for (const bool decays : {true, false}) {
      for (size_t i = begin; i < end; ++i) {
        const ParameterGroup& group = groups_[order[i]];
        if (group.decays != decays) continue;
        places_[order[i]] = {static_cast<int>(buckets_.size()), bucket.elements};
        bucket.elements += round_up(group.shape.elements(), kAlignment);
      }
      if (decays) bucket.decayed = bucket.elements;
    }
    buckets_.push_back(bucket);
    begin = end;
  }
  for (size_t i = 0; i < groups_.size(); ++i) index_[groups_[i].name] = i;
}

FlatTensors::FlatTensors(engine::Program& program, const FlatLayout& layout, const std::string& name,
                         engine::DType dtype, engine::MemoryClass memory_class, Owner owner) {
  for (size_t i = 0; i < layout.buckets().size(); ++i) {
    const engine::Shape shape{layout.buckets()[i].elements};
    const std::string full = name + "." + std::to_string(i);
    buckets_.push_back(owner == Owner::kProgram ? program.persistent(full, dtype, shape, memory_class)
                                                : program.external(full, dtype, shape));
  }
}

engine::Tensor FlatTensors::group(const FlatLayout& layout, const std::string& name) const {
  const size_t index = layout.index(name);
  const GroupPlace& place = layout.place(index);
  return buckets_[place.bucket].slice(place.first, layout.groups()[index].shape);
}

engine::Tensor FlatTensors::part(const FlatLayout& layout, size_t group, size_t part) const {
  const GroupPlace& place = layout.place(group);
  const std::vector<Parameter>& parts = layout.groups()[group].parts;
  int64_t first = place.first;
  for (size_t i = 0; i < part; ++i) first += parts[i].shape.elements();
  return buckets_[place.bucket].slice(first, parts[part].shape);
}

}  // namespace telar::parallel
