// 32-byte sectors that a kernel's warps fetch and write per request, from Nsight Compute: 16 for a warp of 16-byte
// accesses side by side, more where they are apart.
#pragma once

#include <istream>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace telar::bench {

// The most of any launch of a kernel; 0: it made no such request.
struct SectorsPerRequest {
  double loads = 0;
  double stores = 0;
};
// By kernel, from what `ncu --csv` prints of print_sectors()' metrics, with whatever else is between its lines.
std::map<std::string, SectorsPerRequest> read_sectors(std::istream& csv);

// Runs this program once more with the same arguments under `ncu`, each op called once, and prints a line a kernel of
// ours: those whose names end in _kernel.
// NOT_FOUND: no ncu on the PATH. Where ncu says why it failed (no right to read the counters), so does the error.
absl::Status print_sectors(int argc, char** argv);

}  // namespace telar::bench
