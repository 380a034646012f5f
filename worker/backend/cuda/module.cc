// libtelar_cuda.so: what telar-rank loads on a GPU node.
#include "worker/backend/module.h"

#include "worker/backend/cuda/cuda.h"

namespace telar::backend::cuda {
namespace {

constexpr ModuleTable kTable = {.abi = kModuleAbi, .open = open_device};

}  // namespace
}  // namespace telar::backend::cuda

extern "C" __attribute__((visibility("default"))) const telar::backend::ModuleTable* telar_backend_module() {
  return &telar::backend::cuda::kTable;
}
