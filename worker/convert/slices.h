// Boxes of a logical tensor out of the stored one that it is a part of.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "worker/backend/dtype.h"
#include "worker/convert/tensor_map.h"
#include "worker/parallel/parameter.h"

namespace telar::convert {

// Reads out.size() bytes of the stored tensor, from `first_byte` of it on.
using ReadBytes = std::function<absl::Status(uint64_t first_byte, std::span<std::byte> out)>;

// The elements of the boxes, each row-major, one behind the other, as f32. Reads the smallest rectangle that has all
// boxes in it, each of its bytes once, a few MiB at a time: boxes of a call should be neighbours, as those that a rank
// holds are. INVALID_ARGUMENT, without the tensor's name, for boxes outside it or that do not fill `out`.
absl::Status read_boxes(const StoredTensor& tensor, const Part& part, backend::DType dtype, const ReadBytes& read,
                        std::span<const parallel::Box> boxes, std::span<float> out);

}  // namespace telar::convert
