#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/memory_ops.h"
#include "worker/backend/cuda/nccl_communicator.h"

namespace telar::backend::cuda {
namespace {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  cudaEvent_t handle() const { return event_; }

 private:
  const cudaEvent_t event_;
};

// `submit` enqueues at once, so an error of a launch latches here and one of a running kernel is found by synchronize.
class CudaStream final : public Stream {
 public:
  CudaStream(std::string name, int device, cudaStream_t stream)
      : name_(std::move(name)), device_(device), stream_(stream) {}
  // A later stream may get this one's handle, and with it the workspace that kernels keep for it.
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  void submit(const std::function<absl::Status(Stream&)>& work) override {
    if (!error_.ok()) return;
    latch(cudaSetDevice(device_), "cudaSetDevice");
    if (error_.ok()) error_ = work(*this);
  }
  void record(Event& event) override {
    if (error_.ok()) latch(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), stream_), "cudaEventRecord");
  }
  void wait(Event& event) override {
    if (error_.ok())
      latch(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).handle(), 0), "cudaStreamWaitEvent");
  }
  absl::Status synchronize() override {
    const cudaError_t error = cudaStreamSynchronize(stream_);  // Also after an error: earlier work may still run.
    if (error_.ok()) latch(error, "cudaStreamSynchronize");
    return error_;
  }
  cudaStream_t handle() const { return stream_; }

 private:
  void latch(cudaError_t error, const char* call) {
    error_ = to_status(error, absl::StrCat("stream '", name_, "': ", call));
  }

  const std::string name_;
  const int device_;
  const cudaStream_t stream_;
  absl::Status error_;
};

class CudaMemory final : public Memory {
 public:
  CudaMemory(void* data, size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  ~CudaMemory() override { cudaFree(data_); }
  std::byte* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::byte* const data_;
  const size_t bytes_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, DeviceInfo info, std::unique_ptr<Kernels> kernels)
      : index_(index), info_(std::move(info)), kernels_(std::move(kernels)) {}
  const DeviceInfo& info() const override { return info_; }
  Kernels& kernels() override { return *kernels_; }

  absl::StatusOr<std::unique_ptr<Memory>> allocate(size_t bytes) override {
    if (absl::Status status = select(); !status.ok()) return status;
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);  // Aligned to 256 bytes at least.
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      return absl::ResourceExhaustedError(absl::StrCat("device ", index_, " (", info_.model, "): ", bytes,
                                                       " bytes asked, ", free, " of ", total, " free"));
    }
    if (absl::Status status = to_status(error, "cudaMalloc"); !status.ok()) return status;
    auto memory = std::make_unique<CudaMemory>(data, bytes);
    if (bytes > 0) {
      absl::Status status = to_status(cudaMemset(data, 0, bytes), "cudaMemset");
      if (status.ok()) status = finish();
      if (!status.ok()) return status;
    }
    return memory;
  }

  absl::StatusOr<std::unique_ptr<Stream>> create_stream(const std::string& name, bool) override {
    if (absl::Status status = select(); !status.ok()) return status;
    cudaStream_t stream = nullptr;
    absl::Status status = to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (!status.ok()) return status;
    return std::make_unique<CudaStream>(name, index_, stream);
  }

  absl::StatusOr<std::unique_ptr<Event>> create_event() override {
    if (absl::Status status = select(); !status.ok()) return status;
    cudaEvent_t event = nullptr;
    absl::Status status = to_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    if (!status.ok()) return status;
    return std::make_unique<CudaEvent>(event);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> create_communicator(KeyValueStore& store,
                                                                    const CommunicatorOptions& options) override {
    return NcclCommunicator::create(index_, store, options);
  }

  absl::Status copy_to_device(const void* host, std::byte* device, size_t bytes) override {
    return copy(device, host, bytes, cudaMemcpyHostToDevice);
  }
  absl::Status copy_to_host(const std::byte* device, void* host, size_t bytes) override {
    return copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }

 private:
  absl::Status select() const { return to_status(cudaSetDevice(index_), absl::StrCat("cudaSetDevice(", index_, ")")); }
  // Memset and copies from pageable memory may return before the device is done, and our streams do not wait for the
  // default stream by themselves.
  absl::Status finish() const { return to_status(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); }
  absl::Status copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) const {
    absl::Status status = select();
    if (status.ok()) status = to_status(cudaMemcpy(to, from, bytes, kind), "cudaMemcpy");
    return status.ok() ? finish() : status;
  }

  const int index_;
  const DeviceInfo info_;
  const std::unique_ptr<Kernels> kernels_;
};

// Dense rates of the data sheets, for the SXM boards only: the others run at other clocks and powers.
void set_peaks(DeviceInfo& info) {
  if (info.model != "NVIDIA H100 80GB HBM3" && info.model != "NVIDIA H200") return;
  info.peak_flops_f32 = 66.9e12;
  info.peak_flops_bf16 = 989.4e12;
  info.peak_flops_f16 = 989.4e12;
}

}  // namespace

cudaStream_t handle_of(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

absl::StatusOr<std::unique_ptr<Device>> open_device(const DeviceOptions& options) {
  const auto unusable = [&](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat("CUDA device ", options.index, ": ", why));
  };
  int count = 0;
  if (absl::Status status = to_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount"); !status.ok()) {
    return unusable(std::string(status.message()));
  }
  if (options.index < 0 || options.index >= count) return unusable(absl::StrCat("this machine has ", count));
  cudaDeviceProp properties;
  absl::Status status = to_status(cudaGetDeviceProperties(&properties, options.index), "cudaGetDeviceProperties");
  if (status.ok()) status = to_status(cudaSetDevice(options.index), "cudaSetDevice");
  if (!status.ok()) return unusable(std::string(status.message()));
  if (absl::Status code = to_status(check_code(), "loading the kernels"); !code.ok()) {
    return unusable(absl::StrCat(properties.name, ", compute capability ", properties.major, ".", properties.minor,
                                 ": ", std::string(code.message())));
  }
  DeviceInfo info{.model = properties.name, .memory_bytes = properties.totalGlobalMem};
  set_peaks(info);
  auto kernels = create_kernels(options.index, options.deterministic);
  if (!kernels.ok()) return kernels.status();
  return std::make_unique<CudaDevice>(options.index, std::move(info), *std::move(kernels));
}

}  // namespace telar::backend::cuda
