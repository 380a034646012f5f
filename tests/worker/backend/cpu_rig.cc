// The conformance suite on the CPU kernels: host memory, and a stream that nothing is submitted to.
#include <omp.h>

#include <memory>
#include <new>
#include <vector>

#include "tests/worker/backend/kernel_test.h"
#include "worker/backend/cpu/cpu.h"

namespace telar::backend::testing {

namespace {

class CallerStream final : public Stream {
 public:
  void submit(const std::function<absl::Status(Stream&)>& work) override { (void)work(*this); }
  void record(Event&) override {}
  void wait(Event&) override {}
  void copy(void*, const void*, size_t) override {}
  absl::Status synchronize() override { return absl::OkStatus(); }
};

class CpuRig final : public Rig {
 public:
  CpuRig() : own_kernels_(cpu::create_kernels()), kernels_(*own_kernels_) { set_threads(2); }
  explicit CpuRig(Kernels& kernels) : kernels_(kernels) {}
  Kernels& kernels() override { return kernels_; }
  Stream& stream() override { return stream_; }
  // One element off the natural alignment and no byte more than asked, so that AddressSanitizer sees the first one
  // read or written outside.
  std::byte* allocate(size_t bytes, size_t alignment) override {
    blocks_.push_back(std::make_unique<std::byte[]>(bytes + alignment));
    return blocks_.back().get() + alignment;
  }
  void upload(const void* host, std::byte* device, size_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void download(const std::byte* device, void* host, size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void set_threads(int threads) override { omp_set_num_threads(threads); }
  bool refuses_values() const override { return true; }

 private:
  std::unique_ptr<Kernels> own_kernels_;
  Kernels& kernels_;
  CallerStream stream_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace

std::unique_ptr<Rig> make_rig() { return std::make_unique<CpuRig>(); }
std::unique_ptr<Rig> make_rig_beside(Rig& rig) { return std::make_unique<CpuRig>(rig.kernels()); }

}  // namespace telar::backend::testing
