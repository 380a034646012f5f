#include "worker/backend/kernels.h"

#include <memory>

#include "worker/backend/cpu/cpu.h"
#include "worker/backend/cpu/cpu_kernels.h"

namespace telar::backend::cpu {

std::unique_ptr<Kernels> create_kernels() { return std::make_unique<CpuKernels>(); }

}  // namespace telar::backend::cpu
