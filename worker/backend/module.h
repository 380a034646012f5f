// The backends are modules, libtelar_cpu.so and libtelar_cuda.so, that telar-rank loads: a machine without CUDA builds
// and runs everything on the CPU, and one without the NVIDIA driver still starts every program.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/device.h"

namespace telar::backend {

// The one symbol that a module exports: extern "C" const ModuleTable* telar_backend_module().
struct ModuleTable {
  int abi;  // kModuleAbi of the headers it was built with.
  absl::StatusOr<std::unique_ptr<Device>> (*open)(const DeviceOptions&);
};
inline constexpr int kModuleAbi = 3;
inline constexpr const char* kModuleSymbol = "telar_backend_module";

// Loads libtelar_<name>.so from beside the running program or its lib/ folder, and opens a device. The module stays
// loaded for the life of the process. NOT_FOUND: no such module or a library it needs is missing (named);
// FAILED_PRECONDITION: built against other headers, or no usable device.
absl::StatusOr<std::unique_ptr<Device>> open_device(const std::string& name, const DeviceOptions& options);

}  // namespace telar::backend
