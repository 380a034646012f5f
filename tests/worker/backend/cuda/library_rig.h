// A device, a stream and memory by the CUDA runtime alone, for tests of what vendor libraries compute. Without as many
// GPUs as a test needs it is skipped.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/worker/backend/kernel_test.h"
#include "worker/backend/cuda/library_ops.h"

namespace telar::backend::testing {

int gpu_count();

class PlainStream final : public Stream {
 public:
  PlainStream();
  ~PlainStream() override;
  void submit(const std::function<absl::Status(Stream&)>& work) override { (void)work(*this); }
  void record(Event&) override {}
  void wait(Event&) override {}
  void copy(void*, const void*, size_t) override {}
  absl::Status synchronize() override;
  cudaStream_t handle() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class LibraryRig final : public Rig {
 public:
  explicit LibraryRig(int device = 0);
  ~LibraryRig() override;
  Kernels& kernels() override;  // None: ends the program.
  PlainStream& stream() override { return *stream_; }
  // Aligned to 256 bytes, or one element off that, as `set_aligned` says.
  std::byte* allocate(size_t bytes, size_t alignment) override;
  void upload(const void* host, std::byte* device, size_t bytes) override;
  void download(const std::byte* device, void* host, size_t bytes) override;
  void set_threads(int) override {}
  bool refuses_values() const override { return false; }
  void set_aligned(bool aligned) { aligned_ = aligned; }
  void release();  // All memory so far.

 private:
  std::unique_ptr<PlainStream> stream_;
  std::vector<void*> blocks_;
  bool aligned_ = true;
};

// A device with LibraryOps on it.
class LibraryTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override;
  cuda::LibraryOps& ops() { return *ops_; }
  LibraryRig& rig() { return *rig_; }
  PlainStream& stream() { return rig_->stream(); }
  void ok(const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(stream().synchronize().ok());
  }
  Values random(int64_t n, double scale = 1.0);  // Normal.
  Values uniform(int64_t n);                     // In [-1, 1), quickly.
  int64_t pick(int64_t low, int64_t high);
  Tensor tensor(DType dtype, Shape shape, const Values& values) { return {*rig_, dtype, shape, values}; }
  Tensor filled(DType dtype, Shape shape, double value) {
    return tensor(dtype, shape, Values(shape.elements(), value));
  }
  // What `work` enqueues, captured into a graph that is then run once.
  void run_captured(const std::function<absl::Status()>& work);

 private:
  std::unique_ptr<LibraryRig> rig_;
  std::unique_ptr<cuda::LibraryOps> ops_;
  std::mt19937_64 engine_{20260801};
};

}  // namespace telar::backend::testing
