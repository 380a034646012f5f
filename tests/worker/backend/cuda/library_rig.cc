#include "tests/worker/backend/cuda/library_rig.h"

#include <cstdlib>

#include "worker/backend/cuda/cuda.h"

namespace telar::backend::testing {

namespace {

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  ADD_FAILURE() << call << ": " << cudaGetErrorString(error);
  cudaGetLastError();
}

}  // namespace

int gpu_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

PlainStream::PlainStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
PlainStream::~PlainStream() { cudaStreamDestroy(stream_); }
absl::Status PlainStream::synchronize() { return cuda::to_status(cudaStreamSynchronize(stream_), "synchronize"); }

LibraryRig::LibraryRig(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  stream_ = std::make_unique<PlainStream>();
}
LibraryRig::~LibraryRig() { release(); }

Kernels& LibraryRig::kernels() { std::abort(); }

std::byte* LibraryRig::allocate(size_t bytes, size_t alignment) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes + alignment), "cudaMalloc");
  blocks_.push_back(data);
  return static_cast<std::byte*>(data) + (aligned_ ? 0 : alignment);
}

void LibraryRig::upload(const void* host, std::byte* device, size_t bytes) {
  check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "upload");
  check(cudaDeviceSynchronize(), "upload");
}

void LibraryRig::download(const std::byte* device, void* host, size_t bytes) {
  check(cudaDeviceSynchronize(), "download");
  check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "download");
}

void LibraryRig::release() {
  check(cudaDeviceSynchronize(), "release");
  for (void* block : blocks_) cudaFree(block);
  blocks_.clear();
}

void LibraryTest::SetUp() {
  if (gpu_count() < 1) GTEST_SKIP() << "no GPU";
  rig_ = std::make_unique<LibraryRig>();
  auto ops = cuda::LibraryOps::create(0, false);
  ASSERT_TRUE(ops.ok()) << ops.status();
  ops_ = *std::move(ops);
}

Values LibraryTest::random(int64_t n, double scale) {
  std::normal_distribution<double> normal(0, scale);
  Values values(n);
  for (double& value : values) value = normal(engine_);
  return values;
}

Values LibraryTest::uniform(int64_t n) {
  Values values(n);
  for (double& value : values) value = static_cast<double>(static_cast<int64_t>(engine_())) * 0x1p-63;
  return values;
}

int64_t LibraryTest::pick(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(engine_);
}

void LibraryTest::run_captured(const std::function<absl::Status()>& work) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream().handle(), cudaStreamCaptureModeThreadLocal), "begin capture");
  EXPECT_EQ(work(), absl::OkStatus());
  check(cudaStreamEndCapture(stream().handle(), &graph), "end capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check(cudaGraphLaunch(exec, stream().handle()), "launch");
  EXPECT_EQ(stream().synchronize(), absl::OkStatus());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

}  // namespace telar::backend::testing

namespace telar::backend::cuda {

cudaStream_t handle_of(Stream& stream) { return static_cast<testing::PlainStream&>(stream).handle(); }

}  // namespace telar::backend::cuda
