// How much memory this process can still have on its host.
#pragma once

#include <cstdint>
#include <string>

namespace telar::train {

// Bytes: what the machine can give without swapping, or less where the process's control group (version 2) or one above
// it allows less; page cache counts as free. UINT64_MAX where nobody tells. `root` is for tests: what stands in for
// "/".
uint64_t available_host_memory(const std::string& root = "");

}  // namespace telar::train
