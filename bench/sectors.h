// 32-byte sectors that a kernel's warps fetch and write per request, from Nsight Compute: 16 for a warp of 16-byte
// accesses side by side, more where they are apart.
#pragma once

#include "absl/status/status.h"

namespace telar::bench {

// Runs this program once more with the same arguments under `ncu`, each op called once, and prints a line a kernel of
// ours: those whose names end in _kernel.
// NOT_FOUND: no ncu on the PATH. Where ncu says why it failed (no right to read the counters), so does the error.
absl::Status print_sectors(int argc, char** argv);

}  // namespace telar::bench
