// A stored tensor's bytes, made of the logical ones.
#pragma once

#include <functional>
#include <span>

#include "absl/status/status.h"
#include "worker/backend/dtype.h"
#include "worker/checkpoint/weight_source.h"
#include "worker/convert/tensor_map.h"

namespace telar::convert {

using Sink = std::function<absl::Status(std::span<const std::byte> bytes)>;

// A source may have to read and check more than it gives (a checkpoint's chunks, of 64 MiB), so bands are large.
inline constexpr int64_t kBandElements = int64_t{32} << 20;

// Hands the tensor's bytes to `sink`, front to back, a few MiB at a time, made in bands of about `band_elements`: two
// times 128 MiB of its own at the most.
// Parts of it that lie outside the stored tensor are left out. FAILED_PRECONDITION names the tensor where a finite
// value is too large for `dtype`.
absl::Status emit(const checkpoint::WeightSource& source, const StoredTensor& tensor, backend::DType dtype,
                  const Sink& sink, int64_t band_elements = kBandElements);

}  // namespace telar::convert
