// What the engine's tests share: hand-made ops, a CPU device without kernels, random programs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/backend/device.h"
#include "worker/engine/executor.h"
#include "worker/engine/program.h"

namespace telar::engine::testing {

inline constexpr Lane kComputeLane{LaneKind::kCompute, 0};
inline constexpr Lane comm_lane(uint32_t group) { return {LaneKind::kComm, group}; }

using Body = std::function<absl::Status(const RunContext&, backend::Stream&)>;

Access read(const Tensor& tensor);
Access write(const Tensor& tensor);
Access update(const Tensor& tensor);
Access make_access(const Tensor& tensor, uint64_t begin, uint64_t end, backend::AccessMode mode);

// A tensor of `bytes` u8.
Tensor persistent(Program& program, const std::string& name, int64_t bytes,
                  MemoryClass memory_class = MemoryClass::kWeights);
Tensor transient(Program& program, const std::string& name, int64_t bytes,
                 MemoryClass memory_class = MemoryClass::kActivations);
Tensor external(Program& program, const std::string& name, int64_t bytes);

// An op that mixes all bytes that it declares to read into all bytes that it declares to write, so that any other
// order of conflicting ops, or any other input, changes the result. Yields its thread now and then.
OpId mix(Program& program, const std::string& name, Lane lane, std::vector<Access> accesses);
OpId add(Program& program, const std::string& name, Lane lane, std::vector<Access> accesses, Body body);

std::unique_ptr<backend::Device> create_device();

// A small program of random buffers of every lifetime, on the device and on the host, ranges, modes, lanes, copies and
// waits that are asked for. Never invalid.
Program random_program(uint64_t seed);
std::vector<OpId> random_topological_order(const Plan& plan, uint64_t seed);

}  // namespace telar::engine::testing
