// Tensors that spend the time between two uses in host memory: a copy out, a copy in, and the waits without which no
// device memory would be saved, since the memory plan adds no order of its own. The caller's list places all three:
//
//   forward of unit u:        use x ...;  parked[u] = copy_out(program, "u", {x, ...});
//   forward of unit u + d:    release(program, parked[u]);   from here on others may have x's bytes
//   backward of unit u + e:   back[u] = copy_in(program, parked[u]);   starts when compute gets here
//   backward of unit u:       use back[u] ...
//
// Compute waits in release() for a copy that is not done, and a copy in waits for the compute before it: the distances
// d and e (1 or more hide the copies) bound how many units the device holds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "worker/engine/program.h"

namespace telar::engine {

struct Parked {
  std::string name;
  std::vector<Tensor> host;  // In the order of what was copied out.
  OpId last_copy = 0;
};

// Behind the last use of `tensors` on the way out; one at least.
Parked copy_out(Program& program, const std::string& name, std::span<const Tensor> tensors);
// What is recorded for the compute lane from here on starts when the copies out are done.
void release(Program& program, const Parked& parked);
// New transients of the class kActivations with the same contents, types and shapes. May be called again.
std::vector<Tensor> copy_in(Program& program, const Parked& parked);

}  // namespace telar::engine
