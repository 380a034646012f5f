// What parameters exist, and which slice of each a rank holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/buffer.h"

namespace telar::parallel {

// Whose gradients must be added up to get a parameter's, before anything else is done with them.
enum class Partial : uint8_t {
  kNone,
  kTensor,    // Each tensor rank saw its share of the tokens: norms.
  kKeyValue,  // Each tensor rank saw its share of the query heads that one key-value head serves.
};

// A logical tensor: what a checkpoint stores and what a seed initialises, the same in every layout.
struct Parameter {
  enum class Init : uint8_t { kNormal, kZeros, kOnes };
  std::string name;     // "layers.3.q.weight"
  engine::Shape shape;  // Logical: whole and unpadded.
  Init init = Init::kZeros;
  float stddev = 0;  // kNormal.
  // The slice that this rank holds: [first, first + extent) of one axis.
  int axis = 0;
  int64_t first = 0;
  int64_t extent = -1;  // -1: all of it.
  // Of the ranks that hold the same slice and are no data-parallel replicas of each other, the one that counts it in
  // norms and saves it.
  bool primary = true;
  Partial partial = Partial::kNone;

  engine::Shape local() const;  // Of the slice.
};

// The box of the logical tensor that some consecutive elements of a slice are; in each axis [offset, offset + extent).
struct Box {
  std::vector<int64_t> offset, extent;
  int64_t elements() const;
};
// Elements [first, first + count) of the flattened slice, as boxes whose elements follow each other in that order: at
// most three for a matrix.
std::vector<Box> boxes(const Parameter& parameter, int64_t first, int64_t count);

// Parameters stored back to back and used as one tensor.
struct ParameterGroup {
  std::string name;     // "layers.3.qkv.weight"
  engine::Shape shape;  // Of the packed tensor; may have padding rows at its end, which stay zero.
  bool decays = false;  // Weight decay applies.
  int unit = 0;         // Units finish their backward in descending order.
  std::vector<Parameter> parts;
  // The first product of a step or micro-batch that has its gradient writes it whole, padding included; else it is only
  // added to.
  bool written = false;
  bool tied = false;  // See Bucket::tied.
};

}  // namespace telar::parallel
