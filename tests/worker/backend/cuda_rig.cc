// The conformance suite on the first GPU. TELAR_TEST_MISALIGNED=1 in the environment: tensors one element off
// alignment.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "tests/worker/backend/kernel_test.h"
#include "worker/backend/cuda/cuda.h"

namespace telar::backend::testing {

namespace {

// One for the life of the process, as handles of vendor libraries take long to make; never destroyed, as the runtime
// may be gone by then. Null when there is no GPU.
Device* shared_device() {
  static Device* const device = []() -> Device* {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return nullptr;
    auto opened = cuda::open_device({});
    EXPECT_TRUE(opened.ok()) << opened.status();  // A GPU that cannot be used fails the test, rather than skips it.
    return opened.ok() ? opened->release() : nullptr;
  }();
  return device;
}

class CudaRig final : public Rig {
 public:
  CudaRig(Device& device, std::unique_ptr<Stream> stream) : device_(device), stream_(std::move(stream)) {}
  Kernels& kernels() override { return device_.kernels(); }
  Stream& stream() override { return *stream_; }
  std::byte* allocate(size_t bytes, size_t alignment) override {
    const size_t offset = std::getenv("TELAR_TEST_MISALIGNED") == nullptr ? 0 : alignment;
    auto memory = device_.allocate(bytes + offset + 1);  // One more, so that no tensor is at null.
    EXPECT_TRUE(memory.ok()) << memory.status();
    if (!memory.ok()) std::abort();
    blocks_.push_back(*std::move(memory));
    return blocks_.back()->data() + offset;
  }
  void upload(const void* host, std::byte* device, size_t bytes) override {
    if (bytes == 0) return;
    EXPECT_EQ(device_.copy_to_device(host, device, bytes), absl::OkStatus());
  }
  void download(const std::byte* device, void* host, size_t bytes) override {
    if (bytes == 0) return;
    EXPECT_EQ(device_.copy_to_host(device, host, bytes), absl::OkStatus());
  }
  void set_threads(int) override {}
  bool refuses_values() const override { return false; }
  bool rounds_probabilities() const override { return true; }

 private:
  Device& device_;
  std::vector<std::unique_ptr<Memory>> blocks_;  // Freed after the stream's work is done.
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<Rig> make_rig() {
  Device* device = shared_device();
  if (device == nullptr) return nullptr;
  auto stream = device->create_stream("test", true);
  EXPECT_TRUE(stream.ok()) << stream.status();
  return stream.ok() ? std::make_unique<CudaRig>(*device, *std::move(stream)) : nullptr;
}

std::unique_ptr<Rig> make_rig_beside(Rig&) { return make_rig(); }

}  // namespace telar::backend::testing
