// The ops of recorded programs, as a benchmark counts them.
#pragma once

#include <string>
#include <vector>

#include "worker/engine/program.h"

namespace telar::bench {

// Every kernel of backend/kernels.h by its method's name; read off the header when the benchmarks are built.
const std::vector<std::string>& kernel_names();
// The method's name; "collective" for ops that call none.
std::string kernel_of(const engine::Op& op);

// The name without what tells its occurrences apart, and the kernel's switches: "mb3/layers.11.qkv.wgrad" that adds to
// its gradient is "layers.*.qkv.wgrad:1", one that writes it ":0".
std::string kind_of(const engine::Op& op);

// "[65536, 768] [2304, 768] > [65536, 2304]": what is read, then what is written; * marks what is both.
std::string shapes_of(const engine::Op& op);

// Bytes between memory and the op if it fetches everything once and writes everything once. Of a table that ids point
// into, at most a row an id.
double traffic_of(const engine::Op& op);

}  // namespace telar::bench
