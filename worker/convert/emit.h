// Stored tensors' bytes, made of the logical ones.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/dtype.h"
#include "worker/checkpoint/weight_source.h"
#include "worker/convert/tensor_map.h"

namespace telar::convert {

using Sink = std::function<absl::Status(std::span<const std::byte> bytes)>;

// Not for several threads. `source` must outlive it.
class Emitter {
 public:
  // A source may have to read and check more than it gives (a checkpoint's chunks, of 64 MiB), so bands are large.
  static constexpr int64_t kBandElements = int64_t{32} << 20;

  // Tensors are made in bands of about so many elements: two times 128 MiB at the most.
  Emitter(const checkpoint::WeightSource& source, backend::DType dtype, int64_t band_elements = kBandElements)
      : source_(source), dtype_(dtype), band_elements_(band_elements) {}

  // Hands the tensor's bytes to `sink`, front to back, a few MiB at a time. Parts of it that lie outside the stored
  // tensor are left out. FAILED_PRECONDITION names the tensor where a finite value is too large for the dtype.
  absl::Status emit(const StoredTensor& tensor, const Sink& sink);

 private:
  absl::Status copy(const StoredTensor& tensor, const Part& part, int64_t top, int64_t bottom);
  absl::Status turn(const StoredTensor& tensor, const Part& part, int64_t top, int64_t bottom);
  absl::Status write(const StoredTensor& tensor, const Sink& sink);

  const checkpoint::WeightSource& source_;
  const backend::DType dtype_;
  const int64_t band_elements_;
  // Kept from tensor to tensor: pages that are given back and taken anew cost more than what is done with them.
  std::vector<float> values_;   // Of a band of stored rows.
  std::vector<float> upright_;  // Of a part of a transposed tensor.
  std::vector<std::byte> bytes_;
};

}  // namespace telar::convert
