#include "worker/backend/cuda/marks.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/driver.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

constexpr size_t kMarksAtOnce = 64;  // The driver takes up to 255.

class CudaMarks final : public Marks {
 public:
  explicit CudaMarks(uint32_t slots) : bytes_(slots * sizeof(uint32_t)) {}
  // Nothing of it is used when the context is dead.
  ~CudaMarks() override {
    if (device_words_ != nullptr) cudaHostUnregister(words_);
    if (words_ != nullptr) munmap(words_, bytes_);
  }

  absl::Status prepare() {
    void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return absl::ResourceExhaustedError(absl::StrCat("mmap of ", bytes_, " bytes"));
    words_ = static_cast<uint32_t*>(memory);
    TELAR_RETURN_IF_ERROR(to_status(cudaHostRegister(words_, bytes_, cudaHostRegisterMapped | cudaHostRegisterPortable),
                                    "cudaHostRegister"));
    void* mapped = nullptr;
    TELAR_RETURN_IF_ERROR(to_status(cudaHostGetDevicePointer(&mapped, words_, 0), "cudaHostGetDevicePointer"));
    device_words_ = static_cast<uint32_t*>(mapped);
    TELAR_RETURN_IF_ERROR(find_in_driver("cuStreamBatchMemOp", 12000, batch_));
    return try_graph();
  }

  void leave(Stream& stream, std::span<const Mark> marks) override {
    stream.submit([this, marks](Stream& on) { return write(handle_of(on), marks); });
  }
  uint32_t read(uint32_t slot) const override {
    return std::atomic_ref<uint32_t>(words_[slot]).load(std::memory_order_acquire);
  }

 private:
  absl::Status write(cudaStream_t stream, std::span<const Mark> marks) const {
    while (!marks.empty()) {
      const size_t count = std::min(marks.size(), kMarksAtOnce);
      std::array<CUstreamBatchMemOpParams, kMarksAtOnce> writes{};
      for (size_t i = 0; i < count; ++i) {
        writes[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        writes[i].writeValue.address = reinterpret_cast<CUdeviceptr>(device_words_ + marks[i].slot);
        writes[i].writeValue.value = marks[i].value;
      }
      TELAR_RETURN_IF_ERROR(
          driver_status(batch_(stream, static_cast<unsigned>(count), writes.data(), 0), "cuStreamBatchMemOp"));
      marks = marks.subspan(count);
    }
    return absl::OkStatus();
  }

  // Whether a graph can hold such writes depends on the driver: better found here than by a step that then has no
  // graph.
  absl::Status try_graph() {
    cudaStream_t stream = nullptr;
    TELAR_RETURN_IF_ERROR(to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    const absl::Status status = try_graph_on(stream);
    cudaStreamDestroy(stream);
    if (!status.ok()) return status;
    if (read(0) != 1) return absl::InternalError("a graph has left no mark");
    words_[0] = 0;
    return absl::OkStatus();
  }
  absl::Status try_graph_on(cudaStream_t stream) const {
    TELAR_RETURN_IF_ERROR(
        to_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    const Mark mark{.slot = 0, .value = 1};
    absl::Status status = write(stream, std::span(&mark, 1));
    cudaGraph_t graph = nullptr;
    status.Update(to_status(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
    cudaGraphExec_t ready = nullptr;
    if (status.ok()) status = to_status(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    if (status.ok()) status = to_status(cudaGraphLaunch(ready, stream), "cudaGraphLaunch");
    if (status.ok()) status = to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (ready != nullptr) cudaGraphExecDestroy(ready);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return status;
  }

  const size_t bytes_;
  uint32_t* words_ = nullptr;
  uint32_t* device_words_ = nullptr;  // The same, as the device sees them.
  CUresult (*batch_)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned) = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Marks>> create_cuda_marks(uint32_t slots) {
  auto marks = std::make_unique<CudaMarks>(slots);
  const absl::Status status = marks->prepare();
  if (!status.ok()) return absl::UnimplementedError(absl::StrCat("marks: ", std::string(status.message())));
  return marks;
}

}  // namespace telar::backend::cuda
