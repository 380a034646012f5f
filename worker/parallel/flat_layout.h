// Where every parameter lives: flat buckets of whole units (a transformer block, the embedding, the head).
//
// Gradients of a bucket are reduced by one collective as soon as its last unit's backward is done, and the optimizer
// walks a bucket as two flat ranges: what decays comes first, what does not after it. Parameters that one product uses
// together (query, key and value; gate and up) are stored back to back, so the packed matrix is a view, and each
// logical tensor is a row range of it.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/engine/program.h"

namespace telar::parallel {

// A logical tensor: what a checkpoint stores and what a seed initialises, the same in every layout.
struct Parameter {
  enum class Init : uint8_t { kNormal, kZeros, kOnes };
  std::string name;     // "layers.3.q.weight"
  engine::Shape shape;  // Logical: unpadded.
  Init init = Init::kZeros;
  float stddev = 0;  // kNormal.
};

// Parameters stored back to back and used as one tensor.
struct ParameterGroup {
  std::string name;     // "layers.3.qkv.weight"
  engine::Shape shape;  // Of the packed tensor; may have padding rows at its end, which stay zero.
  bool decays = false;  // Weight decay applies.
  int unit = 0;         // Units finish their backward in descending order.
  std::vector<Parameter> parts;
};

struct GroupPlace {
  int bucket = 0;
  int64_t first = 0;  // Element of the bucket where the group starts; a multiple of kAlignment.
};

struct Bucket {
  int last_unit = 0;    // The unit whose backward completes the bucket: the smallest in it.
  int64_t decayed = 0;  // Elements [0, decayed) decay.
  int64_t elements = 0;
};

class FlatLayout {
 public:
  static constexpr int64_t kAlignment = 64;  // Elements.

  // Fills buckets from the highest unit down; a bucket closes once it holds `bucket_elements` or more.
  FlatLayout(std::vector<ParameterGroup> groups, int64_t bucket_elements);

  const std::vector<ParameterGroup>& groups() const { return groups_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const GroupPlace& place(size_t group) const { return places_[group]; }
  size_t index(const std::string& group_name) const { return index_.at(group_name); }

 private:
  std::vector<ParameterGroup> groups_;
  std::vector<GroupPlace> places_;
  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, size_t> index_;
};

// One flat f32, bf16 or f16 tensor a bucket: all the weights, all the gradients, all the first moments, ...
class FlatTensors {
 public:
  FlatTensors() = default;
  enum class Owner : uint8_t { kProgram, kExternal };
  // Declares "<name>.<bucket>" buffers in `program`.
  FlatTensors(engine::Program& program, const FlatLayout& layout, const std::string& name, engine::DType dtype,
              engine::MemoryClass memory_class, Owner owner);

  bool defined() const { return !buckets_.empty(); }
  const std::vector<engine::Tensor>& buckets() const { return buckets_; }
  engine::Tensor group(const FlatLayout& layout, const std::string& name) const;   // Packed.
  engine::Tensor part(const FlatLayout& layout, size_t group, size_t part) const;  // Logical.

 private:
  std::vector<engine::Tensor> buckets_;
};

}  // namespace telar::parallel
