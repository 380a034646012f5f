#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/memory_ops.h"

namespace telar::backend::cuda {
namespace {

using absl::Status;

Status missing(const char* op) { return absl::UnimplementedError(absl::StrCat(op, ": no CUDA kernel")); }

Status bad(const char* op, const char* argument, const std::string& got, const std::string& wanted) {
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", argument, " is ", got, ", wanted ", wanted));
}

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

Status check_dtype(const char* op, const char* argument, DType got, bool ok, const char* wanted) {
  return ok ? absl::OkStatus() : bad(op, argument, std::string(name_of(got)), wanted);
}

// `view` has what `like` has.
Status check_like(const char* op, const char* argument, const View& view, const View& like, bool dtype_too) {
  if (view.elements() != like.elements()) {
    return bad(op, argument, view.shape.to_string(), absl::StrCat(like.elements(), " elements"));
  }
  if (dtype_too && view.dtype != like.dtype) {
    return bad(op, argument, std::string(name_of(view.dtype)), std::string(name_of(like.dtype)));
  }
  return absl::OkStatus();
}

class CudaKernels final : public Kernels {
 public:
  Status fill(Stream& stream, float value, Out x) override {
    const bool known = is_float(x.dtype) || x.dtype == DType::kI32;
    if (Status status = check_dtype("fill", "x", x.dtype, known, "f32, bf16, f16 or i32"); !status.ok()) return status;
    return to_status(launch_fill(handle_of(stream), x.dtype, value, x.data, x.elements()), "fill");
  }
  Status copy(Stream& stream, In x, Out y) override {
    if (Status status = check_like("copy", "y", y, x, true); !status.ok()) return status;
    return to_status(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, handle_of(stream)), "copy");
  }
  Status cast(Stream& stream, In x, Out y) override {
    Status status = check_dtype("cast", "x", x.dtype, is_float(x.dtype), "f32, bf16 or f16");
    if (status.ok()) status = check_dtype("cast", "y", y.dtype, is_float(y.dtype), "f32, bf16 or f16");
    if (status.ok()) status = check_like("cast", "y", y, x, false);
    if (!status.ok()) return status;
    return to_status(launch_cast(handle_of(stream), x.dtype, x.data, y.dtype, y.data, x.elements()), "cast");
  }
  Status add(Stream& stream, In a, In b, Out y) override {
    const bool known = a.dtype == DType::kF32 || a.dtype == DType::kBF16;
    Status status = check_dtype("add", "a", a.dtype, known, "f32 or bf16");
    if (status.ok()) status = check_like("add", "b", b, a, true);
    if (status.ok()) status = check_like("add", "y", y, a, true);
    if (!status.ok()) return status;
    return to_status(launch_add(handle_of(stream), a.dtype, a.data, b.data, y.data, a.elements()), "add");
  }

  Status random_normal(Stream&, RandomKey, float, Out) override { return missing("random_normal"); }
  Status embedding(Stream&, In, In, In, int64_t, Out) override { return missing("embedding"); }
  Status embedding_backward(Stream&, In, In, int64_t, InOut, InOut) override { return missing("embedding_backward"); }
  Status linear(Stream&, In, In, In, Out) override { return missing("linear"); }
  Status linear_dgrad(Stream&, In, In, Out) override { return missing("linear_dgrad"); }
  Status linear_wgrad(Stream&, In, In, InOut, InOut) override { return missing("linear_wgrad"); }
  Status layer_norm(Stream&, In, In, In, In, float, Out, Out, Out, Out) override { return missing("layer_norm"); }
  Status layer_norm_backward(Stream&, In, In, In, In, In, InOut, InOut, InOut) override {
    return missing("layer_norm_backward");
  }
  Status rms_norm(Stream&, In, In, In, float, Out, Out, Out) override { return missing("rms_norm"); }
  Status rms_norm_backward(Stream&, In, In, In, In, InOut, InOut) override { return missing("rms_norm_backward"); }
  Status gelu(Stream&, In, Out) override { return missing("gelu"); }
  Status gelu_backward(Stream&, In, In, Out) override { return missing("gelu_backward"); }
  Status swiglu(Stream&, In, Out) override { return missing("swiglu"); }
  Status swiglu_backward(Stream&, In, In, Out) override { return missing("swiglu_backward"); }
  Status rope(Stream&, const AttentionDims&, In, InOut) override { return missing("rope"); }
  Status rope_backward(Stream&, const AttentionDims&, In, InOut) override { return missing("rope_backward"); }
  Status attention(Stream&, const AttentionDims&, In, Out, Out) override { return missing("attention"); }
  Status attention_backward(Stream&, const AttentionDims&, In, In, In, In, Out) override {
    return missing("attention_backward");
  }
  Status count_valid(Stream&, In, InOut) override { return missing("count_valid"); }
  Status cross_entropy(Stream&, In, In, int64_t, InOut, InOut) override { return missing("cross_entropy"); }
  Status cross_entropy_loss(Stream&, In, In, int64_t, In, InOut) override { return missing("cross_entropy_loss"); }
  Status sum_squares(Stream&, In, InOut) override { return missing("sum_squares"); }
  Status clip_scale(Stream&, In, float, Out, Out) override { return missing("clip_scale"); }
  Status adamw(Stream&, const AdamWParams&, In, In, In, InOut, InOut, InOut, Out) override { return missing("adamw"); }
};

}  // namespace

std::unique_ptr<Kernels> create_kernels() { return std::make_unique<CudaKernels>(); }

}  // namespace telar::backend::cuda
