#pragma once

#include <complex>
#include <cstdint>
#include <vector>

#include "tests/reference/values.h"

namespace telar::reference {

// Rotates `heads` heads at the start of each row of `width`; pair (i, i + D/2) as a complex number times
// cos + i sin of its position's angle, or the conjugate.
inline void rope(Values& rows, int64_t width, int64_t heads, int64_t head_dim, const Values& table, int64_t sequence,
                 bool backward, const std::vector<int32_t>& starts = {}) {
  const int64_t half = head_dim / 2;
  for (size_t t = 0; t < rows.size() / width; ++t) {
    const int64_t start = starts.empty() ? 0 : starts[t];
    const double* angles = &table[(static_cast<int64_t>(t) % sequence - start) * head_dim];
    for (int64_t head = 0; head < heads; ++head) {
      double* at = &rows[t * width + head * head_dim];
      for (int64_t i = 0; i < half; ++i) {
        const std::complex<double> turn(angles[i], backward ? -angles[half + i] : angles[half + i]);
        const std::complex<double> turned = std::complex<double>(at[i], at[half + i]) * turn;
        at[i] = turned.real();
        at[half + i] = turned.imag();
      }
    }
  }
}

}  // namespace telar::reference
