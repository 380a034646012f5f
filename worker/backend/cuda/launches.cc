#include "worker/backend/cuda/launches.h"

#include <cuda.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/driver.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

constexpr int kWarp = 32;

// Of the driver, which the module does not link: the vendor libraries launch through it, and then the runtime does not
// know their kernels.
struct Driver {
  CUresult (*node_params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) = nullptr;
  CUresult (*function_of)(CUfunction*, CUkernel) = nullptr;
  CUresult (*name)(const char**, CUfunction) = nullptr;
  CUresult (*attribute)(int*, CUfunction_attribute, CUfunction) = nullptr;
  CUresult (*resident_blocks)(int*, CUfunction, int, size_t) = nullptr;
};

absl::StatusOr<Driver> find_driver() {
  Driver driver;
  absl::Status status = find_in_driver("cuGraphKernelNodeGetParams", 12000, driver.node_params);
  status.Update(find_in_driver("cuKernelGetFunction", 12000, driver.function_of));
  status.Update(find_in_driver("cuFuncGetName", 12030, driver.name));
  status.Update(find_in_driver("cuFuncGetAttribute", 12000, driver.attribute));
  status.Update(find_in_driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", 12000, driver.resident_blocks));
  if (!status.ok()) return status;
  return driver;
}

std::string demangle(const char* symbol) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &failed),
                                                         &std::free);
  return failed == 0 ? text.get() : symbol;
}

// The smallest of what each resource of a multiprocessor allows. Registers are given to a warp of one of the four
// schedulers in units of 256; shared memory of a block has 1 KiB for the system (CUDA programming guide, 9.0).
std::string limiter_of(const KernelLaunch& launch, const cudaDeviceProp& gpu) {
  const int warps = (launch.threads + kWarp - 1) / kWarp;
  const int a_warp = std::max(256, (launch.registers * kWarp + 255) / 256 * 256);
  const int by_registers = gpu.regsPerMultiprocessor / 4 / a_warp * 4 / warps;
  const size_t a_block = launch.shared_bytes + gpu.reservedSharedMemPerBlock;
  const int by_shared = static_cast<int>(gpu.sharedMemPerMultiprocessor / std::max<size_t>(1, a_block));
  const int by_warps = launch.max_warps / warps;
  const std::pair<int, const char*> limits[] = {{by_warps, "warps"},
                                                {by_registers, "registers"},
                                                {by_shared, "shared memory"},
                                                {gpu.maxBlocksPerMultiProcessor, "blocks"}};
  const auto least = std::min_element(std::begin(limits), std::end(limits),
                                      [](const auto& a, const auto& b) { return a.first < b.first; });
  const uint64_t places = static_cast<uint64_t>(std::max(1, least->first)) * gpu.multiProcessorCount;
  return launch.blocks < places ? "grid" : least->second;
}

absl::StatusOr<KernelLaunch> describe_node(const Driver& driver, const cudaDeviceProp& gpu, cudaGraphNode_t node) {
  CUDA_KERNEL_NODE_PARAMS params{};
  absl::Status status = driver_status(driver.node_params(node, &params), "cuGraphKernelNodeGetParams");
  if (status.ok() && params.func == nullptr) {
    status = driver_status(driver.function_of(&params.func, params.kern), "cuKernelGetFunction");
  }
  if (!status.ok()) return status;
  const char* name = "";
  int registers = 0, shared = 0, local = 0, blocks = 0;
  KernelLaunch launch;
  launch.threads = static_cast<int>(params.blockDimX * params.blockDimY * params.blockDimZ);
  launch.blocks = uint64_t{params.gridDimX} * params.gridDimY * params.gridDimZ;
  status = driver_status(driver.name(&name, params.func), "cuFuncGetName");
  status.Update(
      driver_status(driver.attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, params.func), "cuFuncGetAttribute"));
  status.Update(
      driver_status(driver.attribute(&shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, params.func), "cuFuncGetAttribute"));
  status.Update(
      driver_status(driver.attribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, params.func), "cuFuncGetAttribute"));
  status.Update(driver_status(driver.resident_blocks(&blocks, params.func, launch.threads, params.sharedMemBytes),
                              "cuOccupancyMaxActiveBlocksPerMultiprocessor"));
  if (!status.ok()) return status;
  launch.name = demangle(name);
  launch.registers = registers;
  launch.shared_bytes = static_cast<uint64_t>(shared) + params.sharedMemBytes;
  launch.local_bytes = static_cast<uint64_t>(local);
  launch.max_warps = gpu.maxThreadsPerMultiProcessor / kWarp;
  launch.resident_warps = blocks * ((launch.threads + kWarp - 1) / kWarp);
  launch.limiter = limiter_of(launch, gpu);
  return launch;
}

absl::Status describe_graph(const Driver& driver, const cudaDeviceProp& gpu, cudaGraph_t graph,
                            std::vector<KernelLaunch>& launches) {
  size_t count = 0;
  TELAR_RETURN_IF_ERROR(to_status(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes"));
  std::vector<cudaGraphNode_t> nodes(count);
  TELAR_RETURN_IF_ERROR(to_status(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes"));
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    TELAR_RETURN_IF_ERROR(to_status(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType"));
    if (type == cudaGraphNodeTypeGraph) {
      cudaGraph_t child = nullptr;
      TELAR_RETURN_IF_ERROR(
          to_status(cudaGraphChildGraphNodeGetGraph(node, &child), "cudaGraphChildGraphNodeGetGraph"));
      TELAR_RETURN_IF_ERROR(describe_graph(driver, gpu, child, launches));
    } else if (type == cudaGraphNodeTypeKernel) {
      auto launch = describe_node(driver, gpu, node);
      if (!launch.ok()) return launch.status();
      launches.push_back(*std::move(launch));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<KernelLaunch>> describe_launches(int device, cudaStream_t stream,
                                                            const std::function<absl::Status()>& work) {
  const auto driver = find_driver();
  if (!driver.ok()) return driver.status();
  cudaDeviceProp gpu;
  absl::Status status = to_status(cudaGetDeviceProperties(&gpu, device), "cudaGetDeviceProperties");
  if (!status.ok()) return status;
  // Relaxed: what a library asks the driver meanwhile is its own affair.
  status = to_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  if (!status.ok()) return status;
  status = work();
  cudaGraph_t graph = nullptr;
  status.Update(to_status(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  std::vector<KernelLaunch> launches;
  if (status.ok()) status = describe_graph(*driver, gpu, graph, launches);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  return launches;
}

}  // namespace telar::backend::cuda
