// One flat tensor a bucket: all the weights, all the gradients, all the first moments, ... whole or this rank's shards.
#pragma once

#include <string>
#include <vector>

#include "worker/engine/program.h"
#include "worker/parallel/flat_layout.h"

namespace telar::parallel {

class FlatTensors {
 public:
  FlatTensors() = default;
  enum class Owner : uint8_t { kProgram, kExternal };
  enum class Extent : uint8_t { kWhole, kShard };
  // Declares "<name>.<bucket>" buffers in `program`.
  FlatTensors(engine::Program& program, const FlatLayout& layout, const std::string& name, engine::DType dtype,
              engine::MemoryClass memory_class, Owner owner, Extent extent = Extent::kWhole);

  bool defined() const { return !buckets_.empty(); }
  const std::vector<engine::Tensor>& buckets() const { return buckets_; }
  // Elements of a bucket, which must be held.
  engine::Tensor range(size_t bucket, const Range& range) const;
  // This rank's shards of whole tensors, as views.
  FlatTensors shards(const FlatLayout& layout) const;
  engine::Tensor group(const FlatLayout& layout, const std::string& name) const;  // Packed; of whole tensors.

 private:
  std::vector<engine::Tensor> buckets_;
  std::vector<int64_t> first_;  // Which element of the bucket each begins with.
};

}  // namespace telar::parallel
