#include "worker/backend/cuda/occupancy.h"

#include <map>
#include <mutex>
#include <tuple>

namespace telar::backend::cuda {
namespace {

cudaError_t ask(const void* kernel, int threads, size_t bytes, int device, int* blocks) {
  int processors = 0;
  cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, bytes);
  *blocks *= processors;
  return error;
}

}  // namespace

cudaError_t allow_shared(const void* kernel, size_t most) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

cudaError_t resident_blocks(const void* kernel, int threads, size_t bytes, int* blocks) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, size_t, int>, int> known;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  const std::tuple key(kernel, threads, bytes, device);
  if (const auto found = known.find(key); found != known.end()) {
    *blocks = found->second;
    return cudaSuccess;
  }
  *blocks = 0;
  const cudaError_t error = ask(kernel, threads, bytes, device, blocks);
  if (error != cudaSuccess) return error;
  if (*blocks <= 0) return cudaErrorLaunchOutOfResources;
  known[key] = *blocks;
  return cudaSuccess;
}

}  // namespace telar::backend::cuda
