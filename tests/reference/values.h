// The oracle of every kernel: plain loops in f64, one header an op family. Written to be read beside the formula;
// no blocking, no tricks. Tensors are row-major vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace telar::reference {

using Values = std::vector<double>;

}  // namespace telar::reference
