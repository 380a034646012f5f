// An operation graph of cuDNN's backend API, and the kernel plan that cuDNN makes of it.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::backend::cuda {

// Tensors are described by dims and strides in elements, outermost first. A tensor with a uid lies in memory, aligned
// to 16 bytes, and is bound when the plan runs; one without exists only inside the fused kernel. The first error of any
// call latches and comes back from build().
class SdpaGraph {
 public:
  using Tensor = cudnnBackendDescriptor_t;
  using Extents = std::vector<int64_t>;
  using Bindings = std::map<int64_t, void*>;  // uid -> device address, or host address of a scalar.
  static constexpr int64_t kVirtual = 0;

  SdpaGraph() = default;
  SdpaGraph(const SdpaGraph&) = delete;
  ~SdpaGraph();

  Tensor tensor(cudnnDataType_t type, const Extents& dims, const Extents& strides, int64_t uid = kVirtual) {
    return tensor(type, dims, strides, uid, false);
  }
  // f32, read from the host when the plan is launched.
  Tensor scalar(int64_t uid) { return tensor(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, uid, true); }

  // Each returns its result. Sums and arithmetic are in f32.
  Tensor matmul(Tensor a, Tensor b, Tensor c);
  // y = f(x), or f(x, b); with a boolean t, y = t ? x : b. axis: of CUDNN_POINTWISE_GEN_INDEX.
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y, Tensor t = nullptr, int64_t axis = -1);
  Tensor reduce(cudnnReduceTensorOp_t kind, Tensor x, Tensor y);  // Over the dims that are shorter in y.
  Tensor reshape(Tensor x, Tensor y);                             // x with the dims and strides of y.

  // Plans the graph; nothing may be added any more. UNIMPLEMENTED: no kernel for it.
  absl::Status build(cudnnHandle_t handle);
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Enqueues on the handle's stream. `bindings` has every uid.
  absl::Status execute(cudnnHandle_t handle, const Bindings& bindings, void* workspace) const;

 private:
  struct Attribute;
  Tensor tensor(cudnnDataType_t type, const Extents& dims, const Extents& strides, int64_t uid, bool by_value);
  Tensor make(cudnnBackendDescriptorType_t kind, std::initializer_list<Attribute> attributes);
  static cudnnStatus_t try_make(cudnnBackendDescriptorType_t kind, std::initializer_list<Attribute> attributes,
                                Tensor* made);
  absl::StatusOr<std::vector<Tensor>> configurations(cudnnHandle_t handle);

  std::vector<Tensor> owned_, ops_;
  std::vector<int64_t> uids_;
  int64_t next_virtual_uid_ = 1000;
  absl::Status error_;
  Tensor plan_ = nullptr;
  size_t workspace_bytes_ = 0;
};

}  // namespace telar::backend::cuda
