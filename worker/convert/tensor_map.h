// How other people's tensors are made of ours. Tables: docs/formats/foreign_weights.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "telar/v1/spec.pb.h"

namespace telar::convert {

// A logical tensor of ours, and where it stands in a stored one.
struct Part {
  std::string name;            // "layers.3.q.weight"
  std::vector<int64_t> shape;  // [rows] or [rows, columns]
  int64_t first = 0;           // Its row 0 is this row of the stored tensor, or this column when that is transposed.
};

// A tensor as a file has it. What no part covers is padding, and zero.
struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;  // [rows] or [rows, columns]
  bool transposed = false;     // Holds [in, out] where ours are [out, in].
  std::vector<Part> parts;     // By `first`.

  int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }
  int64_t elements() const { return shape[0] * columns(); }
};

// The whole of our own tensors, unfused, in the order of the model.
std::vector<StoredTensor> logical_tensors(const v1::ModelSpec& model);

// What a Hugging Face model of the same kind stores; a tied head is absent. `model` is complete: no field is left to
// its default.
std::vector<StoredTensor> huggingface_tensors(const v1::ModelSpec& model);

// The arrays of an llm.c model file in their order. Those of all layers are one tensor: [layers * rows, columns].
std::vector<StoredTensor> llmc_tensors(const v1::ModelSpec& model, int64_t padded_vocab);

}  // namespace telar::convert
