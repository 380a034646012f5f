#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/launches.h"
#include "worker/backend/cuda/marks.h"
#include "worker/backend/cuda/memory_ops.h"
#include "worker/backend/cuda/nccl_communicator.h"
#include "worker/backend/cuda/nccl_watchdog.h"

namespace telar::backend::cuda {
namespace {

class CudaEvent final : public Event {
 public:
  CudaEvent(int device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  absl::Status synchronize() override {
    return NcclWatchdog::instance().wait(
        device_, [this] { return to_status(cudaEventSynchronize(event_), "cudaEventSynchronize"); });
  }
  cudaEvent_t handle() const { return event_; }

 private:
  const int device_;
  const cudaEvent_t event_;
};

// While a thread captures, errors are the capture's and not the streams': those go on as if nothing had been.
class CaptureScope {
 public:
  CaptureScope() { current_ = this; }
  ~CaptureScope() { current_ = nullptr; }
  CaptureScope(const CaptureScope&) = delete;
  static CaptureScope* current() { return current_; }
  absl::Status error;

 private:
  static thread_local CaptureScope* current_;
};
thread_local CaptureScope* CaptureScope::current_ = nullptr;

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
    if (!error().ok()) return;
    latch(cudaSetDevice(device_), "cudaSetDevice");
    if (!error().ok()) return;
    const absl::Status status = work(*this);  // May have latched an error of its own.
    if (error().ok()) error() = status;
  }
  void record(Event& event) override {
    if (error().ok()) latch(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), stream_), "cudaEventRecord");
  }
  void wait(Event& event) override {
    if (!error().ok()) return;
    latch(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).handle(), 0), "cudaStreamWaitEvent");
  }
  void copy(void* to, const void* from, size_t bytes) override {
    if (!error().ok() || bytes == 0) return;
    latch(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  void launch(cudaGraphExec_t graph) {
    if (error().ok()) latch(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
  }
  absl::Status synchronize() override {
    // Also after an error: earlier work may still run.
    const absl::Status result = NcclWatchdog::instance().wait(device_, [this] {
      return to_status(cudaStreamSynchronize(stream_), absl::StrCat("stream '", name_, "': cudaStreamSynchronize"));
    });
    if (error().ok()) error() = result;
    return error();
  }
  cudaStream_t handle() const { return stream_; }

 private:
  absl::Status& error() { return CaptureScope::current() == nullptr ? error_ : CaptureScope::current()->error; }
  void latch(cudaError_t result, const char* call) {
    if (result != cudaSuccess) error() = to_status(result, absl::StrCat("stream '", name_, "': ", call));
  }

  const std::string name_;
  const int device_;
  const cudaStream_t stream_;
  absl::Status error_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, size_t nodes) : graph_(graph), nodes_(nodes) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }  // One that runs is freed when it is done.
  void launch(Stream& stream) override { static_cast<CudaStream&>(stream).launch(graph_); }
  size_t nodes() const override { return nodes_; }

 private:
  const cudaGraphExec_t graph_;
  const size_t nodes_;
};

class CudaMemory final : public Memory {
 public:
  // `in_use` counts the bytes of all that are alive, and outlives them.
  CudaMemory(void* data, size_t bytes, std::atomic<uint64_t>& in_use)
      : data_(static_cast<std::byte*>(data)), bytes_(bytes), in_use_(in_use) {
    in_use_ += bytes;
  }
  ~CudaMemory() override {
    cudaFree(data_);
    in_use_ -= bytes_;
  }
  std::byte* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::byte* const data_;
  const size_t bytes_;
  std::atomic<uint64_t>& in_use_;
};

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kManyPages = 32 * kHugePage;  // Below that no page is worth a thought.

class PinnedMemory final : public Memory {
 public:
  PinnedMemory(void* data, size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  ~PinnedMemory() override { cudaFreeHost(data_); }
  std::byte* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::byte* const data_;
  const size_t bytes_;
};

// Pinned by the driver where it stands: of 2 MiB pages, where the kernel has them, which are taken and pinned in a
// fraction of the time (18.5 GB: docs/performance.md).
class RegisteredMemory final : public Memory {
 public:
  // Null: not to be had this way.
  static std::unique_ptr<Memory> take(size_t bytes) {
    std::unique_ptr<RegisteredMemory> memory(new RegisteredMemory(bytes));
    if (memory->mapped_ == MAP_FAILED) return nullptr;
    madvise(memory->data(), bytes, MADV_HUGEPAGE);  // A hint; kernels without it say EINVAL.
    memory->registered_ = cudaHostRegister(memory->data(), bytes, cudaHostRegisterPortable) == cudaSuccess;
    if (memory->registered_) return memory;
    cudaGetLastError();
    return nullptr;
  }
  ~RegisteredMemory() override {
    if (registered_) cudaHostUnregister(data());
    if (mapped_ != MAP_FAILED) munmap(mapped_, bytes_ + kHugePage);
  }
  std::byte* data() override {
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    return reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
  }
  size_t bytes() const override { return bytes_; }

 private:
  explicit RegisteredMemory(size_t bytes)
      : mapped_(mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        bytes_(bytes) {}

  void* const mapped_;
  const size_t bytes_;
  bool registered_ = false;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, DeviceInfo info, std::unique_ptr<CudaKernels> kernels)
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
    auto memory = std::make_unique<CudaMemory>(data, bytes, allocated_);
    if (bytes > 0) {
      absl::Status status = to_status(cudaMemset(data, 0, bytes), "cudaMemset");
      if (status.ok()) status = finish();
      if (!status.ok()) return status;
    }
    return memory;
  }

  absl::StatusOr<std::unique_ptr<Memory>> allocate_pinned(size_t bytes) override {
    if (absl::Status status = select(); !status.ok()) return status;
    if (bytes >= kManyPages) {
      if (auto memory = RegisteredMemory::take(bytes)) return memory;
    }
    void* data = nullptr;
    absl::Status status = to_status(cudaMallocHost(&data, bytes), absl::StrCat("cudaMallocHost of ", bytes, " bytes"));
    if (!status.ok()) return status;
    if (bytes > 0) std::memset(data, 0, bytes);
    return std::make_unique<PinnedMemory>(data, bytes);
  }

  absl::StatusOr<DeviceOverhead> overhead() override {
    if (absl::Status status = select(); !status.ok()) return status;
    size_t free = 0, total = 0;
    if (absl::Status status = to_status(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"); !status.ok()) return status;
    DeviceOverhead used{.workspaces = kernels_->workspace_bytes()};
    const uint64_t known = allocated_.load() + used.workspaces;
    used.context = total - free > known ? total - free - known : 0;
    return used;
  }

  absl::StatusOr<std::unique_ptr<Stream>> create_stream(const std::string& name, bool) override {
    if (absl::Status status = select(); !status.ok()) return status;
    cudaStream_t stream = nullptr;
    absl::Status status = to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (!status.ok()) return status;
    return std::make_unique<CudaStream>(name, index_, stream);
  }

  absl::StatusOr<std::unique_ptr<Event>> create_event() override {
    // A host that waits for a step sleeps: the device has the next one, and the data loader wants the core.
    return make_event(cudaEventDisableTiming | cudaEventBlockingSync);
  }
  absl::StatusOr<std::unique_ptr<Event>> create_timed_event() override { return make_event(cudaEventDefault); }
  absl::StatusOr<double> seconds_between(Event& start, Event& stop) override {
    const cudaEvent_t from = static_cast<CudaEvent&>(start).handle(), to = static_cast<CudaEvent&>(stop).handle();
    float milliseconds = 0;
    absl::Status status = to_status(cudaEventSynchronize(from), "cudaEventSynchronize");
    if (status.ok()) status = to_status(cudaEventSynchronize(to), "cudaEventSynchronize");
    if (status.ok()) status = to_status(cudaEventElapsedTime(&milliseconds, from, to), "cudaEventElapsedTime");
    if (!status.ok()) return status;
    return 1e-3 * milliseconds;
  }

  absl::StatusOr<std::unique_ptr<Graph>> capture(Stream& origin, const std::function<absl::Status()>& issue) override {
    if (absl::Status status = select(); !status.ok()) return status;
    cudaGraph_t recorded = nullptr;
    if (absl::Status status = record(handle_of(origin), issue, recorded); !status.ok()) {
      if (recorded != nullptr) cudaGraphDestroy(recorded);
      return status;
    }
    size_t nodes = 0;
    cudaGraphExec_t ready = nullptr;
    absl::Status status = to_status(cudaGraphGetNodes(recorded, nullptr, &nodes), "cudaGraphGetNodes");
    if (status.ok()) status = to_status(cudaGraphInstantiate(&ready, recorded, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(recorded);
    if (!status.ok()) return status;
    auto graph = std::make_unique<CudaGraph>(ready, nodes);
    status = to_status(cudaGraphUpload(ready, handle_of(origin)), "cudaGraphUpload");
    if (!status.ok()) return status;
    return graph;
  }

  absl::StatusOr<std::unique_ptr<Marks>> create_marks(uint32_t slots) override {
    if (absl::Status status = select(); !status.ok()) return status;
    return create_cuda_marks(slots);
  }

  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> create_communicators(
      KeyValueStore& store, const GangOptions& options, std::span<const Group> groups) override {
    return create_nccl_communicators(index_, store, options, groups);
  }

  absl::Status copy_to_device(const void* host, std::byte* device, size_t bytes) override {
    return copy(device, host, bytes, cudaMemcpyHostToDevice);
  }
  absl::Status copy_to_host(const std::byte* device, void* host, size_t bytes) override {
    return copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }

  absl::StatusOr<std::vector<KernelLaunch>> describe(Stream& stream,
                                                     const std::function<absl::Status(Stream&)>& work) override {
    if (absl::Status status = select(); !status.ok()) return status;
    return describe_launches(index_, handle_of(stream), [&] { return work(stream); });
  }

 private:
  absl::StatusOr<std::unique_ptr<Event>> make_event(unsigned flags) const {
    if (absl::Status status = select(); !status.ok()) return status;
    cudaEvent_t event = nullptr;
    absl::Status status = to_status(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
    if (!status.ok()) return status;
    return std::make_unique<CudaEvent>(index_, event);
  }

  // Thread-local: what other threads do meanwhile, NCCL's among them, is their business, while a call of ours that
  // allocates or synchronizes spoils the capture. The first error is the cause; the end reports only that there was
  // one.
  static absl::Status record(cudaStream_t origin, const std::function<absl::Status()>& issue, cudaGraph_t& graph) {
    absl::Status status =
        to_status(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    if (!status.ok()) return status;
    {
      CaptureScope scope;
      status = issue();
      status.Update(scope.error);
    }
    status.Update(to_status(cudaStreamEndCapture(origin, &graph), "cudaStreamEndCapture"));
    return status;
  }
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
  std::atomic<uint64_t> allocated_{0};
  const std::unique_ptr<CudaKernels> kernels_;
};

// Dense rates of the data sheets, for the SXM boards only: the others run at other clocks and powers.
void set_peaks(DeviceInfo& info) {
  if (info.model != "NVIDIA H100 80GB HBM3" && info.model != "NVIDIA H200") return;
  info.peak_flops_f32 = 66.9e12;
  info.peak_flops_bf16 = 989.4e12;
  info.peak_flops_f16 = 989.4e12;
  info.peak_flops_f8 = 1978.9e12;
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
  info.multiplies_fp8 = 10 * properties.major + properties.minor >= 89;
  info.multiplies_fp8_blocks = properties.major == 9;  // What comes behind has blocks of its own.
  set_peaks(info);
  auto kernels = create_kernels(options.index, options.deterministic);
  if (!kernels.ok()) return kernels.status();
  return std::make_unique<CudaDevice>(options.index, std::move(info), *std::move(kernels));
}

}  // namespace telar::backend::cuda
