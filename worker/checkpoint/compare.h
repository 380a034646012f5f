// How two checkpoints differ, of whatever layouts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_reader.h"

namespace telar::checkpoint {

enum class Difference : uint8_t {
  kNone,     // Equal bit for bit.
  kOnlyInA,  // The other has no tensor of that name and kind.
  kOnlyInB,
  kShape,
  kDType,  // Of equal or other values: see below.
  kValues,
};

struct TensorComparison {
  std::string name;
  TensorKind kind = TensorKind::kWeight;
  Difference difference = Difference::kNone;
  std::string note;         // Of kShape and kDType: what each has.
  int64_t elements = 0;     // Where both have the shape.
  int64_t differing = 0;    // Elements whose values are not equal; two NaN are.
  double max_absolute = 0;  // Greatest |a - b|; infinite where one is not finite and they differ.
  double max_relative = 0;  // Greatest |a - b| / max(|a|, |b|), at most 2.
};

// A member of the specs, by its path, and what each has: JSON, or "" where it is not there.
struct SpecDifference {
  std::string path, a, b;
};

struct Comparison {
  std::vector<TensorComparison> tensors;  // In the order of a's manifest, then what only b has.
  std::vector<SpecDifference> spec;
  std::vector<SpecDifference> position;  // Of the manifests themselves: step, consumed_samples, seed, optimizer.
};

// Reads all of both, a part of a tensor at a time. Errors as CheckpointReader's.
absl::StatusOr<Comparison> compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b);

}  // namespace telar::checkpoint
