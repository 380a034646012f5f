// libtelar_cpu.so: what telar-rank loads on a machine without a GPU.
#include "worker/backend/module.h"

#include "worker/backend/cpu/cpu.h"

namespace telar::backend::cpu {
namespace {

absl::StatusOr<std::unique_ptr<Device>> open(const DeviceOptions& options) {
  return create_device(options, create_kernels(), create_gloo_communicators);
}

constexpr ModuleTable kTable = {.abi = kModuleAbi, .open = open};

}  // namespace
}  // namespace telar::backend::cpu

extern "C" __attribute__((visibility("default"))) const telar::backend::ModuleTable* telar_backend_module() {
  return &telar::backend::cpu::kTable;
}
